"""The anthropic SDK."""

from __future__ import annotations

import anthropic
import pytest

from .conftest import CAPITAL, Server

pytestmark = pytest.mark.clients
QUESTION = [{"role": "user", "content": CAPITAL}]


@pytest.fixture
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0)


def test_whole_equals_streamed(server: Server, client: anthropic.Anthropic) -> None:
    asked = {"model": server.model, "max_tokens": 50, "messages": QUESTION, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**asked)
    assert "Paris" in whole.content[0].text
    assert whole.stop_reason == "end_turn"
    assert whole.usage.output_tokens > 0
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == whole.stop_reason


def test_tokens_are_counted(server: Server, client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model=server.model, messages=QUESTION)
    whole = client.messages.create(model=server.model, max_tokens=1, messages=QUESTION)
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_errors(server: Server, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model=server.model, max_tokens=0, messages=QUESTION)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="absent", max_tokens=5, messages=QUESTION)
