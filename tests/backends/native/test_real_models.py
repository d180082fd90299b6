"""SmolLM2-135M-Instruct and all-MiniLM-L6-v2 as their packages ship them: the tokens and vectors of their libraries."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.native.backend import NativeBackend
from backends.native.engine.loading.weights import load
from schemas.ir import Delta, Embed, Generate, Sampling, Stopping, TextPrompt
from tests.backends.native.real_models import real_model

pytestmark = [pytest.mark.torch, pytest.mark.slow]

MINILM = Path(__file__).parents[2] / "golden" / "minilm.json"
"""Sentences, and their vectors by sentence-transformers 6.2.0 (`SentenceTransformer(folder).encode(sentences)`)."""
PLACES = ("France", "Japan", "Italy", "Egypt", "Peru", "Canada", "Kenya", "Norway", "Greece", "India")
BEGINNINGS = (
    "The capital of {} is",
    "In {}, people like to",
    "A day in {} costs 12",
    "def {}(x):\n    return",
    '{{"{}": ',
)
PROMPTS = [beginning.format(place) for beginning in BEGINNINGS for place in PLACES]
NEW = 10


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[NativeBackend]:
    options: dict[str, Any] = {"engine": "inprocess", "dtype": "float32", "device": "cpu", "threads": 1}
    backend = NativeBackend("native", options | {"model": str(folder), "context_length": 256})
    await backend.start()
    try:
        yield backend
    finally:
        await backend.aclose()


async def test_greedy_tokens_are_those_of_transformers_on_50_prompts() -> None:
    folder = real_model("smollm2")
    chosen: dict[int, list[int]] = {index: [] for index in range(len(PROMPTS))}
    async with running(folder) as backend:
        request = Generate(
            id="g",
            model="m",
            prompts=tuple(map(TextPrompt, PROMPTS)),
            sampling=Sampling(temperature=0.0),
            stopping=Stopping(max_new_tokens=NEW, ignore_eos=True),
        )
        async for events in backend.generate(request):
            for event in events:
                if isinstance(event, Delta):
                    chosen[event.choice] += [token.id for token in event.tokens if token.id is not None]
        encode = backend._text._tokenizer
        prompts = [encode(prompt)["input_ids"] for prompt in PROMPTS]
    # Greedy text is that of transformers exactly if each token is the one that its model would choose there. Padding on
    # the right changes nothing before it.
    rows = [prompt + chosen[index] for index, prompt in enumerate(prompts)]
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    model = load(str(folder)).model
    with torch.inference_mode():
        best = model(padded, use_cache=False).logits.argmax(-1)
    for index, prompt in enumerate(prompts):
        assert len(chosen[index]) == NEW
        found = best[index, len(prompt) - 1 : len(prompt) + NEW - 1]
        assert found.tolist() == chosen[index], PROMPTS[index]
    assert len({tuple(tokens) for tokens in chosen.values()}) > 40  # else they say little


async def test_vectors_are_those_of_sentence_transformers() -> None:
    golden = json.loads(MINILM.read_text())
    async with running(real_model("minilm")) as backend:
        inputs = tuple(map(TextPrompt, golden["sentences"]))
        vectors = (await backend.embed(Embed(id="e", model="m", inputs=inputs))).vectors
    torch.testing.assert_close(torch.tensor(vectors), torch.tensor(golden["vectors"]), atol=1e-5, rtol=0)
