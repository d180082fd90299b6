"""langchain-openai."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from tests.clients.conftest import CAPITAL, Server

pytestmark = pytest.mark.clients


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """Tells the weather."""
    return f'{{"city": "{city}", "temperature": 20, "condition": "sunny"}}'


@pytest.fixture(params=["chat", "responses"])
def model(server: Server, request: pytest.FixtureRequest) -> ChatOpenAI:
    given: dict[str, Any] = {"base_url": f"{server.url}/v1", "api_key": "unused", "model": server.model}
    return ChatOpenAI(**given, temperature=0, stream_usage=True, use_responses_api=request.param == "responses")


def test_chat_whole_equals_streamed(model: ChatOpenAI) -> None:
    whole = model.invoke(CAPITAL)
    assert "Paris" in whole.text
    streamed = _sum(model.stream(CAPITAL))
    assert streamed.text == whole.text
    counts = ("input_tokens", "output_tokens", "total_tokens")
    assert [streamed.usage_metadata[name] for name in counts] == [whole.usage_metadata[name] for name in counts]


@pytest.mark.parametrize("by_id", [False, True])
def test_a_conversation_continues(model: ChatOpenAI, by_id: bool) -> None:
    if by_id and not model.use_responses_api:
        pytest.skip("chats have no ids to go on from")
    asked = [HumanMessage("My name is Anna.")]
    asked += [model.invoke(asked), HumanMessage("What is my name?")]
    assert model.model_copy(update={"use_previous_response_id": by_id}).invoke(asked).text == "Your name is Anna."


def test_tools(model: ChatOpenAI) -> None:
    bound, question = model.bind_tools([get_weather]), HumanMessage("What is the weather in Paris?")
    whole = bound.invoke([question])
    (call,) = whole.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    assert [made["args"] for made in _sum(bound.stream([question])).tool_calls] == [call["args"]]
    answer = bound.invoke([question, whole, get_weather.invoke(call)])
    assert "Paris" in answer.text


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(model: ChatOpenAI, method: Any) -> None:
    bound = model.with_structured_output(Person, method=method)
    assert bound.invoke("Give me JSON with name Anna and age 7.") == Person(name="Anna", age=7)


def test_logprobs(server: Server) -> None:
    model = ChatOpenAI(base_url=f"{server.url}/v1", api_key="unused", model=server.model, logprobs=True, top_logprobs=2)
    logprobs = model.invoke(CAPITAL).response_metadata["logprobs"]["content"]
    assert all(len(token["top_logprobs"]) == 2 for token in logprobs)


def test_completion(server: Server) -> None:
    model = OpenAI(base_url=f"{server.url}/v1", api_key="unused", model=server.model, temperature=0, max_tokens=12)
    whole = model.invoke("The capital of France is")
    assert whole
    assert "".join(model.stream("The capital of France is")) == whole


def test_embeddings(server: Server) -> None:
    """By default it would send token ids of OpenAI's tokenizer to any server."""
    given: dict[str, Any] = {"base_url": f"{server.url}/v1", "api_key": "unused", "model": server.model}
    texts = OpenAIEmbeddings(**given, check_embedding_ctx_length=False)
    one, two = texts.embed_documents(["The weather in Paris is sunny.", "1 + 1 = 2"])
    assert one != two
    assert texts.embed_query("The weather in Paris is sunny.") == pytest.approx(one, abs=1e-5)


def _sum(chunks: Any) -> AIMessageChunk:
    first, *others = chunks
    return sum(others, first)
