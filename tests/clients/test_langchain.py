"""langchain-openai."""

from __future__ import annotations

import pytest
from langchain_openai import ChatOpenAI, OpenAI

from .conftest import CAPITAL, Server

pytestmark = pytest.mark.clients


def test_chat_whole_equals_streamed(server: Server) -> None:
    model = ChatOpenAI(base_url=f"{server.url}/v1", api_key="unused", model=server.model, temperature=0)
    whole = model.invoke(CAPITAL)
    assert "Paris" in whole.content
    assert whole.usage_metadata["total_tokens"] > 0
    assert "".join(chunk.content for chunk in model.stream(CAPITAL)) == whole.content


def test_completion(server: Server) -> None:
    model = OpenAI(base_url=f"{server.url}/v1", api_key="unused", model=server.model, temperature=0, max_tokens=12)
    whole = model.invoke("The capital of France is")
    assert whole
    assert "".join(model.stream("The capital of France is")) == whole
