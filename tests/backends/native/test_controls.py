"""Sleep, wake-up and LoRA adapters of an engine that serves: answers stay those of an engine started that way."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForImageTextToText

from backends.base import Feature, Health
from backends.native.backend import NativeBackend
from backends.native.demo import WEIGHTS
from schemas.completion import Completion
from schemas.errors import BackendUnavailable, Conflict, GatewayError, InvalidRequest, UnsupportedFeature
from schemas.ir import Embed, Events, Generate, Sampling, Stopping, TextPrompt
from tests.backends import laws
from tests.backends.native.engine.lora import folders
from tests.backends.native.multimodal.test_images import chat

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

OPTIONS = {"threads": 1, "dtype": "float32", "device": "cpu", "kv_tokens": 4096, "heartbeat": 0.05}
TARGETS = r".*language_model.*(q|v|down)_proj"


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[NativeBackend]:
    backend = NativeBackend("n", OPTIONS | {"engine": "inprocess"} | options)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.aclose()


@pytest.fixture(scope="module")
def loras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the LoRA adapters `a` and `b`, and one that does not fit."""
    root = tmp_path_factory.mktemp("loras")
    model = AutoModelForImageTextToText.from_pretrained(WEIGHTS, local_files_only=True, dtype=torch.float32)
    folders.save(root / "a", model, TARGETS, 0)
    folders.save(root / "team" / "b", model, TARGETS, 1)
    wrong = folders.save(root / "wrong", model, TARGETS, 2)
    config = json.loads((wrong / "adapter_config.json").read_text())
    (wrong / "adapter_config.json").write_text(json.dumps(config | {"r": 5}))
    (root / "link").symlink_to(WEIGHTS)
    return root


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(loras: Path) -> AsyncIterator[NativeBackend]:
    async with running(lora_folder=str(loras)) as started:
        yield started


def request(lora: str | None = None, tokens: int = 24) -> Generate:
    return Generate(
        id="r",
        model="demo",
        prompts=(chat("What is the capital of France? " * 4),),
        sampling=Sampling(temperature=0.0),
        stopping=Stopping(tokens, ignore_eos=True),
        lora_adapter=lora,
    )


async def ask(backend: NativeBackend, lora: str | None = None) -> list[int | None]:
    return ids(laws.check(await laws.collect(backend.generate(request(lora))), request(lora)))


def ids(answer: Completion) -> list[int | None]:
    return [token.id for token in answer.choices[0].tokens]


async def rest(events: Any, first: Events, asked: Generate) -> list[int | None]:
    batches = [first, *[batch async for batch in events]]
    return ids(laws.check(tuple(event for batch in batches for event in batch), asked))


async def test_a_model_sleeps_and_wakes(backend: NativeBackend) -> None:
    expected = await ask(backend)
    for level in (1, 2):
        await backend.controls.sleep(level)
        assert (backend.controls.asleep, await backend.healthy()) == (level, Health("ready", "asleep"))
        with pytest.raises(BackendUnavailable, match="asleep") as refused:
            await ask(backend)
        assert refused.value.retry_after
        with pytest.raises(BackendUnavailable, match="asleep"):
            await backend.embed(Embed(id="e", model="demo", inputs=(TextPrompt("a"),)))
        await asyncio.sleep(0.2)  # pings are answered, or the engine would be killed
        await backend.controls.wake()
        assert (backend.controls.asleep, await backend.healthy()) == (0, Health("ready"))
        # Twice: the prefixes that were cached before the sleep are gone, and those of now are there.
        assert [await ask(backend), await ask(backend)] == [expected] * 2


async def test_requests_in_flight_end_before_the_sleep(backend: NativeBackend) -> None:
    asked = request(tokens=200)
    expected = ids(laws.check(await laws.collect(backend.generate(asked)), asked))
    events = backend.generate(asked)
    first = await anext(events)
    sleeping = asyncio.create_task(backend.controls.sleep(1))
    assert await rest(events, first, asked) == expected
    await sleeping
    assert backend.controls.asleep == 1
    await backend.controls.wake()


async def test_a_request_wakes_a_model_that_may_be_woken() -> None:
    async with running(engine="process", wake="on_request") as backend:
        expected = await ask(backend)
        for level in (1, 2):
            await backend.controls.sleep(level)
            assert await asyncio.gather(*(ask(backend) for _ in range(3))) == [expected] * 3
            assert backend.controls.asleep == 0


async def test_lora_adapters_are_loaded_and_unloaded_while_serving(backend: NativeBackend, loras: Path) -> None:
    table = {"a": str(loras / "a"), "b": str(loras / "team" / "b")}
    async with running(lora_adapters=table) as fixed:
        base, a, b = [await ask(fixed, name) for name in (None, "a", "b")]
    assert len({tuple(base), tuple(a), tuple(b)}) == 3
    assert await ask(backend) == base
    controls = backend.controls
    await controls.load_lora("x", "a")
    assert (backend.capabilities.lora_adapters, Feature.LORA in backend.capabilities.features) == (("x",), True)
    assert [await ask(backend, "x"), await ask(backend)] == [a, base]
    # Other weights under the same name, while a request is in flight: that one keeps its own, also its prefix.
    events = backend.generate(request("x"))
    first = await anext(events)
    await controls.load_lora("x", "team/b")
    assert await rest(events, first, request("x")) == a
    assert [await ask(backend, "x"), await ask(backend)] == [b, base]
    await controls.load_lora("y", str(loras / "a"))
    assert await asyncio.gather(ask(backend, "x"), ask(backend, "y"), ask(backend)) == [b, a, base]
    # They last through a sleep.
    await controls.sleep(2)
    with pytest.raises(Conflict, match="asleep"):
        await controls.load_lora("z", "a")
    await controls.wake()
    assert await asyncio.gather(ask(backend, "x"), ask(backend, "y")) == [b, a]
    events = backend.generate(request("y"))
    first = await anext(events)
    await controls.unload_lora("y")
    await controls.unload_lora("x")
    assert await rest(events, first, request("y")) == a
    assert (backend.capabilities.lora_adapters, Feature.LORA in backend.capabilities.features) == ((), False)
    with pytest.raises(GatewayError, match="no LoRA adapter"):
        await ask(backend, "x")
    assert await ask(backend) == base


async def test_lora_adapters_that_are_refused(backend: NativeBackend, loras: Path, tmp_path: Path) -> None:
    shutil.copytree(loras / "a", tmp_path / "a")
    outside = (str(tmp_path / "a"), "../a", "/", "", ".", "nothing", "link", "a\0", "a/adapter_config.json", "x" * 5000)
    expected = await ask(backend)
    for path in outside:
        with pytest.raises(InvalidRequest, match="no such folder"):
            await backend.controls.load_lora("x", path)
    with pytest.raises(Conflict, match=r"shapes"):
        await backend.controls.load_lora("x", "wrong")
    with pytest.raises(Conflict, match=r"adapter_config\.json cannot be read"):
        await backend.controls.load_lora("x", "team")
    for name in ("", "../x", "x@1", "a b"):
        with pytest.raises(InvalidRequest, match="no name for"):
            await backend.controls.load_lora(name, "a")
    with pytest.raises(InvalidRequest, match="There is no LoRA adapter"):
        await backend.controls.unload_lora("x")
    assert await ask(backend) == expected
    with pytest.raises(UnsupportedFeature, match="lora_folder"):
        await NativeBackend("n", OPTIONS).controls.load_lora("x", "a")
