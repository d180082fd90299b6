"""llama-index, with its classes for OpenAI-compatible servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core import PromptTemplate
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from tests.clients.conftest import CAPITAL, Server

pytestmark = pytest.mark.clients


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def get_weather(city: str) -> str:
    """Tells the weather."""
    return f'{{"city": "{city}", "temperature": 20, "condition": "sunny"}}'


def llm(server: Server, **options: Any) -> OpenAILike:
    options = {"is_chat_model": True, "is_function_calling_model": True, "max_tokens": 100} | options
    return OpenAILike(api_base=f"{server.url}/v1", api_key="unused", model=server.model, temperature=0, **options)


def test_chat_whole_equals_streamed(server: Server) -> None:
    question = [ChatMessage(role="user", content=CAPITAL)]
    whole = llm(server).chat(question).message.content
    assert "Paris" in whole
    assert "".join(part.delta for part in llm(server).stream_chat(question)) == whole
    assert llm(server).complete(CAPITAL).text == whole


def test_completion_whole_equals_streamed(server: Server) -> None:
    model, prompt = llm(server, is_chat_model=False, max_tokens=12), "The capital of France is"
    whole = model.complete(prompt).text
    assert "Paris" in whole
    assert "".join(part.delta for part in model.stream_complete(prompt)) == whole


def test_tools(server: Server) -> None:
    model, question = llm(server), "What is the weather in Paris?"
    tool = FunctionTool.from_defaults(get_weather)
    whole = model.get_tool_calls_from_response(model.chat_with_tools([tool], user_msg=question))
    assert [(call.tool_name, call.tool_kwargs) for call in whole] == [("get_weather", {"city": "Paris"})]
    *_, last = model.stream_chat_with_tools([tool], user_msg=question)
    assert [call.tool_kwargs for call in model.get_tool_calls_from_response(last)] == [{"city": "Paris"}]
    (source,) = model.predict_and_call([tool], user_msg=question).sources
    assert source.raw_output == get_weather("Paris")


def test_an_agent_streams(server: Server) -> None:
    async def run() -> tuple[str, str]:
        handler = FunctionAgent(tools=[get_weather], llm=llm(server)).run("What is the weather in Paris?")
        pieces = [event.delta async for event in handler.stream_events() if isinstance(event, AgentStream)]
        return str(await handler), "".join(pieces)

    whole, streamed = asyncio.run(run())
    assert "Paris" in whole
    assert streamed == whole


@pytest.mark.parametrize("by_schema", [False, True])
def test_structured_output(server: Server, by_schema: bool) -> None:
    model = llm(server, should_use_structured_outputs=by_schema)
    asked = PromptTemplate("Give me JSON with name {name} and age {age}.")
    assert model.structured_predict(Person, asked, name="Anna", age=7) == Person(name="Anna", age=7)


def test_embeddings(server: Server) -> None:
    texts = OpenAILikeEmbedding(api_base=f"{server.url}/v1", api_key="unused", model_name=server.model)
    one, two = texts.get_text_embedding_batch(["The weather in Paris is sunny.", "1 + 1 = 2"])
    assert one != two
    assert texts.get_query_embedding("The weather in Paris is sunny.") == pytest.approx(one, abs=1e-5)
