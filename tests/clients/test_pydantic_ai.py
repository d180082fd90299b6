"""pydantic-ai, over chat completions and over responses."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.conftest import CAPITAL, Server

pytestmark = pytest.mark.clients


class Person(BaseModel):
    name: Literal["Anna", "Bob"]
    age: int


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(server: Server, request: pytest.FixtureRequest) -> Any:
    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="unused")
    return request.param(server.model, provider=provider, settings={"temperature": 0})


def test_whole_equals_streamed(model: Any) -> None:
    async def streamed() -> tuple[str, Any]:
        async with Agent(model).run_stream(CAPITAL) as run:
            return "".join([text async for text in run.stream_text(delta=True, debounce_by=None)]), run.usage

    whole = Agent(model).run_sync(CAPITAL)
    text, usage = asyncio.run(streamed())
    assert "Paris" in whole.output
    assert text == whole.output
    assert (usage.input_tokens, usage.output_tokens) == (whole.usage.input_tokens, whole.usage.output_tokens)


def test_a_conversation_continues(model: Any) -> None:
    first = Agent(model).run_sync("My name is Anna.")
    second = Agent(model).run_sync("What is my name?", message_history=first.all_messages())
    assert second.output == "Your name is Anna."


def test_an_agent_calls_its_tool_and_continues(model: Any) -> None:
    asked: list[str] = []
    agent = Agent(model)

    @agent.tool_plain
    def get_weather(city: str) -> dict[str, Any]:
        asked.append(city)
        return {"temperature": 20, "condition": "sunny"}

    run = agent.run_sync("What is the weather in Paris?")
    assert asked == ["Paris"]
    assert "Paris" in run.output
    assert run.usage.requests == 2


@pytest.mark.parametrize("form", [ToolOutput, NativeOutput])
def test_an_output_is_a_model(model: Any, form: Any) -> None:
    question = "Give me JSON with name Anna and age 7."
    agent = Agent(model, output_type=form(Person), retries=0)

    async def streamed() -> Person:
        async with agent.run_stream(question) as run:
            return await run.get_output()

    whole = agent.run_sync(question).output
    assert isinstance(whole, Person)
    assert asyncio.run(streamed()) == whole
