"""langchain-huggingface: text by TGI's protocol, chats by OpenAI's, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint
from pydantic import BaseModel

from tests.clients.conftest import CAPITAL, Server

pytestmark = pytest.mark.clients

PROMPT = "The capital of France is"


class GetWeather(BaseModel):
    """Tells the weather."""

    city: str


@pytest.fixture
def endpoint(server: Server) -> HuggingFaceEndpoint:
    """Its defaults sample. Two tokens: streams of this client have the end token, as TGI sends it."""
    return HuggingFaceEndpoint(endpoint_url=server.url, max_new_tokens=2, seed=3)


@pytest.fixture
def chat(server: Server) -> ChatHuggingFace:
    llm = HuggingFaceEndpoint(endpoint_url=server.url, temperature=None, top_p=None, max_new_tokens=64)
    return ChatHuggingFace(llm=llm, temperature=0.0, model_id=server.model)


def test_text_whole_equals_streamed(endpoint: HuggingFaceEndpoint) -> None:
    whole = endpoint.invoke(PROMPT)
    assert whole
    assert "".join(endpoint.stream(PROMPT)) == whole


def test_a_stop_sequence_is_cut_off(endpoint: HuggingFaceEndpoint) -> None:
    assert endpoint.bind(temperature=0.01, max_new_tokens=12).invoke(PROMPT, stop=["."]) == " Paris"


def test_chat_whole_equals_streamed(chat: ChatHuggingFace) -> None:
    whole = chat.invoke(CAPITAL)
    assert "Paris" in whole.content
    streamed = _sum(chat.stream(CAPITAL))
    assert streamed.content == whole.content
    assert streamed.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"] == "stop"


def test_tools(chat: ChatHuggingFace) -> None:
    question = HumanMessage("What is the weather in Paris?")
    (call,) = chat.bind_tools([GetWeather]).invoke([question]).tool_calls
    assert (call["name"], call["args"]) == ("GetWeather", {"city": "Paris"})


def _sum(chunks: Any) -> AIMessageChunk:
    first, *others = chunks
    return sum(others, first)
