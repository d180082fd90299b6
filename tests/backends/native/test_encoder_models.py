"""Embeddings of encoder folders equal those of sentence-transformers for the same folders (`encoders`)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.features import check
from backends.native.backend import NativeBackend
from schemas.errors import BackendUnavailable, ContextLengthExceeded, InvalidRequest, UnsupportedFeature
from schemas.ir import Embed, Generate, TextPrompt, Tokenize, TokensPrompt
from tests.backends.native.encoders import CASES, GOLDEN, TEXTS, WIDTH, build

pytestmark = pytest.mark.torch

OPTIONS: dict[str, Any] = {"engine": "inprocess", "dtype": "float32", "device": "cpu", "threads": 1}


@asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[NativeBackend]:
    backend = NativeBackend("native", OPTIONS | {"model": str(folder)} | options)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.aclose()


def asked(*texts: str | tuple[int, ...], **fields: Any) -> Embed:
    inputs = tuple(TextPrompt(text) if isinstance(text, str) else TokensPrompt(text) for text in texts)
    return Embed(id="e", model="m", inputs=inputs, **fields)


@pytest.mark.parametrize("name", CASES)
async def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    golden = torch.tensor(json.loads(GOLDEN.read_text())[name])
    case = CASES[name]
    async with running(build(tmp_path, case), step_tokens=200) as backend:
        together = await backend.embed(asked(*TEXTS, instruction=case.instruction))
        alone = [(await backend.embed(asked(text, instruction=case.instruction))).vectors[0] for text in TEXTS]
        beside = await backend.embed(asked(*TEXTS * 30, instruction=case.instruction))
    for vectors in (together.vectors, tuple(alone)):
        torch.testing.assert_close(torch.tensor(vectors), golden, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(beside.vectors), golden.repeat(30, 1), atol=1e-5, rtol=0)
    assert beside.usage.prompt_tokens == 30 * together.usage.prompt_tokens
    assert (golden[0] - golden[1]).abs().max() > 1e-2  # else they say nothing


async def test_dimensions_and_instructions(tmp_path: Path) -> None:
    async with running(build(tmp_path, CASES["bert, mean"])) as backend:
        (whole,) = (await backend.embed(asked("hi"))).vectors
        assert len(whole) == WIDTH
        (short,) = (await backend.embed(asked("hi", dimensions=5))).vectors
        assert short == pytest.approx([value / sum(v**2 for v in whole[:5]) ** 0.5 for value in whole[:5]])
        ids = tuple(span.id for span in (await backend.tokenize(_tokens("hi"))).spans)
        given = await backend.embed(asked(ids, (5, 6)))
        assert given.vectors[0] == pytest.approx(whole, abs=1e-5)
        assert given.usage.prompt_tokens == len(ids) + 2
        instructed = await backend.embed(asked("hi", instruction="find:"))
        assert instructed.vectors == (await backend.embed(asked("find: hi"))).vectors


async def test_unsupported_requests_are_rejected(tmp_path: Path) -> None:
    async with running(build(tmp_path, CASES["roberta, prompt left out"])) as backend:
        can = backend.capabilities
        assert (can.generates, can.embeddings, can.context_length) == (False, True, 100)
        with pytest.raises(UnsupportedFeature, match="makes embeddings, and no text"):
            check(Generate(id="g", model="m", prompts=(TextPrompt("hi"),)), can, "m")
        with pytest.raises(ContextLengthExceeded, match="maximum context length is 100 tokens"):
            await backend.embed(asked((5,) * 101))
        with pytest.raises(InvalidRequest, match="at most 24 dimensions"):
            await backend.embed(asked("hi", dimensions=25))
        with pytest.raises(InvalidRequest, match="Token ids in input"):
            await backend.embed(asked((5, 100_000)))


async def test_roberta_has_two_positions_fewer_than_its_table(tmp_path: Path) -> None:
    """Its table has 130 entries; no token uses the first two."""
    folder = build(tmp_path, CASES["roberta, prompt left out"])
    (folder / "sentence_bert_config.json").unlink()
    async with running(folder) as backend:
        assert backend.capabilities.context_length == 128
        assert len((await backend.embed(asked((5,) * 128))).vectors) == 1


async def test_a_folder_without_a_recipe_is_mean_pooled(tmp_path: Path) -> None:
    folder = build(tmp_path, CASES["bert, dense"])
    (folder / "modules.json").unlink()
    mean = build(tmp_path / "mean", CASES["bert, mean"])
    (mean / "sentence_bert_config.json").unlink()
    async with running(folder) as plain, running(mean) as declared:
        assert (await plain.embed(asked(*TEXTS))).vectors == (await declared.embed(asked(*TEXTS))).vectors


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("modules.json", [{"type": "a.Transformer", "path": ""}, {"type": "a.LSTM", "path": ""}], "LSTM"),
        ("modules.json", "{", "not JSON"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "median"),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "Dense"),
        ("2_Dense/config.json", {"use_residual": True}, "Dense"),
    ],
)
async def test_unsupported_recipes_are_rejected(tmp_path: Path, file: str, content: Any, why: str) -> None:
    folder = build(tmp_path, CASES["bert, dense"])
    (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(BackendUnavailable, match=why):
        async with running(folder):
            pass


async def test_missing_weights_of_a_dense_layer_are_rejected(tmp_path: Path) -> None:
    folder = build(tmp_path, CASES["bert, dense"])
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(BackendUnavailable, match=r"2_Dense/model\.safetensors"):
        async with running(folder):
            pass


def _tokens(text: str) -> Tokenize:
    return Tokenize(id="t", model="m", prompt=TextPrompt(text))
