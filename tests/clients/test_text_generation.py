"""text-generation, TGI's own Python client, sync and async."""

from __future__ import annotations

import asyncio

import pytest
import text_generation
from text_generation.errors import ValidationError

from tests.clients.conftest import LIMIT, Server

pytestmark = pytest.mark.clients

PROMPT = "The capital of France is"


def test_whole_equals_streamed(server: Server) -> None:
    client = text_generation.Client(server.url, timeout=LIMIT)
    whole = client.generate(PROMPT, max_new_tokens=12, decoder_input_details=True)
    assert whole.generated_text
    assert whole.details.prefill == []  # as TGI 3 answers, see the dialect's `prefill`
    assert whole.details.generated_tokens == len(whole.details.tokens)
    frames = list(client.generate_stream(PROMPT, max_new_tokens=12))
    assert frames[-1].generated_text == whole.generated_text
    assert [frame.token.id for frame in frames] == [token.id for token in whole.details.tokens]
    assert "".join(f.token.text for f in frames if not f.token.special) == whole.generated_text


def test_async(server: Server) -> None:
    async def ask() -> tuple[str, str]:
        client = text_generation.AsyncClient(server.url, timeout=LIMIT)
        whole = await client.generate(PROMPT, max_new_tokens=12)
        last = [frame async for frame in client.generate_stream(PROMPT, max_new_tokens=12)][-1]
        return whole.generated_text, last.generated_text

    whole, streamed = asyncio.run(ask())
    assert whole == streamed


def test_validation_error(server: Server) -> None:
    client = text_generation.Client(server.url, timeout=LIMIT)
    with pytest.raises((ValidationError, ValueError)):
        client.generate(PROMPT, temperature=-1.0)
    with pytest.raises(ValidationError):
        client.generate(PROMPT, max_new_tokens=1_000_000)


def test_chat(server: Server) -> None:
    """Whole: its `chat(stream=True)` wants role and calls in every delta, which no server of the protocol sends."""
    client = text_generation.Client(server.url, timeout=LIMIT)
    question = {"role": "user", "content": "What is the capital of France?"}
    answer = client.chat([question], temperature=0.01, seed=1, max_tokens=40, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage["completion_tokens"] == len(answer.choices[0].logprobs["content"]) + 1  # the end token
