"""LoRA adapters over the bundled model: every answer is that of a backend whose checkpoint has them merged in."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from msgspec.structs import replace
from transformers import AutoModelForImageTextToText

from backends.base import Feature
from backends.native.backend import NativeBackend
from backends.native.demo import WEIGHTS
from schemas.completion import Completion
from schemas.errors import BackendFailed, BackendUnavailable
from schemas.ir import Embed, Embeddings, Generate, Sampling, Stopping, TextPrompt
from tests.backends import laws
from tests.backends.native.engine.lora import folders
from tests.backends.native.fake_engine import until
from tests.backends.native.multimodal.test_images import chat, drawn_image

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

NAMES = ("", "team/a", "b")
OPTIONS = {"engine": "inprocess", "threads": 1, "dtype": "float32", "device": "cpu", "kv_tokens": 4096}
PROMPTS = (
    chat("What is the capital of France?"),
    TextPrompt("Once upon a time"),
    chat(drawn_image(1)[1], "What is in the picture?"),
)
HEARTBEAT = 0.1
Backends = tuple[NativeBackend, dict[str, NativeBackend]]


def save_merged(folder: Path, lora_adapter: Path, model: Any) -> None:
    shutil.copytree(WEIGHTS, folder)
    folders.merged(model, lora_adapter).save_pretrained(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backends(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backends]:
    """A backend with LoRA adapters, and one backend per LoRA adapter merged."""
    folder = tmp_path_factory.mktemp("lora")
    model = AutoModelForImageTextToText.from_pretrained(WEIGHTS, local_files_only=True, dtype=torch.float32)
    targets = r".*language_model.*(q|v|down)_proj"
    table: dict[str, str] = {}
    merged = {"": NativeBackend("base", OPTIONS)}
    for seed, name in enumerate(NAMES[1:]):
        table[name] = str(folders.save(folder / name, model, targets, seed, alpha=1 + seed))
        save_merged(folder / "merged" / name, folder / name, model)
        merged[name] = NativeBackend(f"merged {name}", OPTIONS | {"model": str(folder / "merged" / name)})
    adapted = NativeBackend("adapted", OPTIONS | {"lora_adapters": table})
    started = (adapted, *merged.values())
    for backend in started:
        await backend.start()
    yield adapted, merged
    for backend in started:
        await backend.aclose()


async def ask(backend: NativeBackend, lora_adapter: str | None = None, **fields: Any) -> Completion:
    asked = Generate(
        id="r",
        model="demo",
        prompts=PROMPTS,
        stopping=Stopping(24, ignore_eos=True),
        lora_adapter=lora_adapter,
        **fields,
    )
    return laws.check(await laws.collect(backend.generate(asked)), asked)


def ids(answer: Completion) -> list[list[int | None]]:
    return [[token.id for token in choice.tokens] for choice in answer.choices]


@pytest.mark.parametrize(
    "fields", [{"sampling": Sampling(temperature=0.0)}, {"sampling": Sampling(seed=5, temperature=1.0), "n": 2}]
)
async def test_answers_equal_those_of_merged_weights(backends: Backends, fields: Any) -> None:
    """Greedy, and several choices from a seed; one prompt has an image."""
    adapted, merged = backends
    expected = [ids(await ask(merged[name], **fields)) for name in NAMES]
    for _ in range(2):  # the second time the prefixes are in the cache
        answers = await asyncio.gather(*(ask(adapted, name or None, **fields) for name in NAMES))
        assert [ids(answer) for answer in answers] == expected
    assert expected[0] != expected[1] != expected[2]


@pytest.mark.slow
async def test_speculation_changes_no_answer_with_lora_adapters_and_images(backends: Backends) -> None:
    """Answers that repeat their prompt, so that drafts are made, and one with an image."""
    adapted, _ = backends
    speculating = NativeBackend("s", replace(adapted._options, speculation=True, heartbeat=HEARTBEAT))
    await speculating.start()
    try:
        for fields in ({"sampling": Sampling(temperature=0.0)}, {"sampling": Sampling(seed=5, temperature=1.0)}):
            expected = [ids(await ask(adapted, name or None, **fields)) for name in NAMES]
            answers = await asyncio.gather(*(ask(speculating, name or None, **fields) for name in NAMES))
            assert [ids(answer) for answer in answers] == expected
        await until(lambda: (state := speculating.engine_states["0"]) is not None and state.drafts > 0)
    finally:
        await speculating.aclose()


async def test_embeddings_equal_those_of_merged_weights(backends: Backends) -> None:
    adapted, merged = backends

    async def embed(backend: NativeBackend, name: str | None) -> torch.Tensor:
        inputs = (TextPrompt("A star is a big ball of hot gas."), TextPrompt("Hi"))
        found: Embeddings = await backend.embed(Embed(id="e", model="demo", inputs=inputs, lora_adapter=name))
        return torch.tensor(found.vectors)

    embedded = [await embed(adapted, name or None) for name in NAMES]
    for vectors, name in zip(embedded, NAMES, strict=True):
        torch.testing.assert_close(vectors, await embed(merged[name], None), atol=1e-5, rtol=0)
    assert float((embedded[0] - embedded[1]).abs().max()) > 1e-2


async def test_capabilities_list_the_lora_adapters(backends: Backends) -> None:
    adapted, merged = backends
    assert adapted.capabilities.lora_adapters == NAMES[1:]
    assert Feature.LORA in adapted.capabilities.features
    assert Feature.LORA not in merged[""].capabilities.features


async def test_the_engine_rejects_unknown_lora_adapters(backends: Backends) -> None:
    """A request with an unknown name gets an error, not the base model's answer."""
    with pytest.raises(BackendFailed, match="there is no LoRA adapter 'c'"):
        await ask(backends[0], "c")


async def test_a_lora_adapter_that_cannot_be_applied_keeps_the_engine_from_starting(tmp_path: Path) -> None:
    backend = NativeBackend("native", OPTIONS | {"lora_adapters": {"a": str(tmp_path)}})
    with pytest.raises(
        BackendUnavailable, match=r"There is no LoRA adapter in '.*': adapter_config.json cannot be read"
    ):
        await backend.start()
    await backend.aclose()


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "/a", "a//b", "a/", "-a", "a/-b", "a b", "é", "a" * 257])
async def test_invalid_names_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="lora_adapters"):
        NativeBackend("native", {"lora_adapters": {name: "folder"}})
