"""openai-agents, over chat completions and over responses, its default."""

from __future__ import annotations

import asyncio
from typing import Any

import agents
import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import CAPITAL, Server

pytestmark = pytest.mark.clients
agents.set_tracing_disabled(True)


class Person(BaseModel):
    name: str
    age: int


@agents.function_tool
def get_weather(city: str) -> str:
    return f'{{"city": "{city}", "temperature": 20, "condition": "sunny"}}'


@pytest.fixture(params=[agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
def settings(server: Server, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings that all agents of a test share."""
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    model = request.param(model=server.model, openai_client=client)
    return {"name": "agent", "model": model, "model_settings": agents.ModelSettings(temperature=0, include_usage=True)}


def test_an_agent_answers(settings: dict[str, Any]) -> None:
    run = agents.Runner.run_sync(agents.Agent(**settings), CAPITAL)
    assert "Paris" in run.final_output


@pytest.mark.parametrize("by_id", [False, True])
def test_a_conversation_continues(settings: dict[str, Any], by_id: bool) -> None:
    if by_id and not isinstance(settings["model"], agents.OpenAIResponsesModel):
        pytest.skip("chats have no ids to go on from")
    agent, question = agents.Agent(**settings), "What is my name?"

    async def both() -> str:
        first = await agents.Runner.run(agent, "My name is Anna.")
        if by_id:
            second = await agents.Runner.run(agent, question, previous_response_id=first.last_response_id)
        else:
            second = await agents.Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": question}])
        return second.final_output

    assert asyncio.run(both()) == "Your name is Anna."


def test_whole_equals_streamed_with_a_tool(settings: dict[str, Any]) -> None:
    whole, streamed, text = asyncio.run(_twice(agents.Agent(**settings, tools=[get_weather])))
    assert [item.type for item in whole.new_items] == ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert whole.new_items[0].raw_item.arguments == '{"city": "Paris"}'
    assert "Paris" in whole.final_output
    assert text == streamed.final_output == whole.final_output
    assert [item.type for item in streamed.new_items] == [item.type for item in whole.new_items]
    assert _counts(streamed) == _counts(whole)


async def _twice(agent: agents.Agent[Any]) -> tuple[agents.RunResult, agents.RunResultStreaming, str]:
    """A run, the same run streamed, and the streamed text."""
    question = "What is the weather in Paris?"
    whole = await agents.Runner.run(agent, question)
    run = agents.Runner.run_streamed(agent, question)
    events = [event.data async for event in run.stream_events() if event.type == "raw_response_event"]
    return whole, run, "".join(part.delta for part in events if part.type == "response.output_text.delta")


def _counts(run: Any) -> list[tuple[int, int]]:
    return [(answer.usage.input_tokens, answer.usage.output_tokens) for answer in run.raw_responses]


def test_a_tool_that_must_be_called_is_called_once(settings: dict[str, Any]) -> None:
    settings["model_settings"] = agents.ModelSettings(temperature=0, tool_choice="required", parallel_tool_calls=False)
    run = agents.Runner.run_sync(agents.Agent(**settings, tools=[get_weather]), "What is the weather in Rome?")
    assert [item.type for item in run.new_items].count("tool_call_item") == 1


def test_a_conversation_is_handed_to_another_agent(settings: dict[str, Any]) -> None:
    other = agents.Agent(**settings | {"name": "other"})
    settings["model_settings"] = agents.ModelSettings(temperature=0, tool_choice="required")
    run = agents.Runner.run_sync(agents.Agent(**settings, handoffs=[other]), CAPITAL)
    assert run.last_agent is other
    assert run.final_output


def test_an_output_is_a_model(settings: dict[str, Any]) -> None:
    agent = agents.Agent(**settings, output_type=Person)
    run = agents.Runner.run_sync(agent, "Give me JSON with name Anna and age 7.")
    assert run.final_output == Person(name="Anna", age=7)
