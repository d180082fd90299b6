"""Embeddings of the bundled model equal those of transformers, however prompts are split and preempted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

from backends.native.backend import NativeBackend
from backends.native.demo import WEIGHTS
from schemas.errors import ContextLengthExceeded, InvalidRequest
from schemas.ir import ChatPrompt, Embed, Embeddings, Generate, Message, Sampling, Stopping, TextPrompt, TokensPrompt
from tests.backends import laws

pytestmark = pytest.mark.torch

TEXTS = ("A star is a big ball of hot gas.", "Hi", "What is the capital of France? " * 12, "Hi 🙂")
FLOAT = {"threads": 1, "dtype": "float32", "device": "cpu"}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[64, 512])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[NativeBackend]:
    options = FLOAT | {"engine": "inprocess", "step_tokens": request.param, "max_sequences": 4, "kv_tokens": 1024}
    backend = NativeBackend("native", options)
    await backend.start()
    yield backend
    await backend.aclose()


module_loop = pytest.mark.asyncio(loop_scope="module")


async def embed(backend: NativeBackend, *texts: str | tuple[int, ...], **fields: object) -> Embeddings:
    inputs = tuple(TextPrompt(text) if isinstance(text, str) else TokensPrompt(text) for text in texts)
    return await backend.embed(Embed(id="e", model="demo", inputs=inputs, **fields))  # type: ignore[arg-type]


def by_transformers(texts: tuple[str, ...]) -> torch.Tensor:
    """[texts, size]: the mean over tokens of the last hidden states, normalized."""
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)
    model = AutoModelForImageTextToText.from_pretrained(WEIGHTS, local_files_only=True, dtype=torch.float32).eval()
    rows = []
    for text in texts:
        with torch.inference_mode():
            out = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        rows.append(torch.nn.functional.normalize(out.hidden_states[-1][0].mean(0), dim=0))
    return torch.stack(rows)


@module_loop
async def test_vectors_are_those_of_transformers(backend: NativeBackend) -> None:
    assert backend.capabilities.embeddings
    for _ in range(2):  # the second time the prefixes are in the cache
        answer = await embed(backend, *TEXTS)
        torch.testing.assert_close(torch.tensor(answer.vectors), by_transformers(TEXTS), atol=1e-5, rtol=0)
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)
    assert answer.usage.prompt_tokens == sum(len(tokenizer.encode(text)) for text in TEXTS)


@module_loop
async def test_embeddings_beside_generation(backend: NativeBackend) -> None:
    prompts = (ChatPrompt((Message("user", "Tell me a story."),)),)
    asked = Generate(id="r", model="demo", prompts=prompts, stopping=Stopping(200, ignore_eos=True))
    stream = backend.generate(asked)
    await anext(stream)
    beside = await embed(backend, *TEXTS * 20)
    alone = await embed(backend, *TEXTS)
    await stream.aclose()
    torch.testing.assert_close(torch.tensor(beside.vectors), torch.tensor(alone.vectors * 20), atol=1e-5, rtol=0)
    assert beside.vectors[0] != beside.vectors[1]


@module_loop
async def test_dimensions_instructions_and_token_ids(backend: NativeBackend) -> None:
    whole, short = await embed(backend, "Hi"), await embed(backend, "Hi", dimensions=10)
    assert len(short.vectors[0]) == 10
    assert sum(value**2 for value in short.vectors[0]) == pytest.approx(1)
    ratio = whole.vectors[0][0] / short.vectors[0][0]
    assert short.vectors[0] == pytest.approx([value / ratio for value in whole.vectors[0][:10]])
    instructed = await embed(backend, "Hi", instruction="Say:")
    assert instructed.vectors == (await embed(backend, "Say: Hi")).vectors
    assert (await embed(backend, (5, 6, 7))).usage.prompt_tokens == 3
    with pytest.raises(InvalidRequest) as many:
        await embed(backend, "Hi", dimensions=10_000)
    assert many.value.param == "dimensions"
    with pytest.raises(InvalidRequest):
        await embed(backend, (5, 100_000))
    with pytest.raises(ContextLengthExceeded):
        await embed(backend, (5,) * 5_000)


@module_loop
async def test_generation_is_not_affected(backend: NativeBackend) -> None:
    prompts = (ChatPrompt((Message("user", "What is a star?"),)),)
    asked = Generate(id="r", model="demo", prompts=prompts, sampling=Sampling(temperature=0))
    answer = laws.check(await laws.collect(backend.generate(asked)), asked)
    assert answer.choices[0].text == "A star is a big ball of hot gas."
