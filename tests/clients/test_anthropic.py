"""The anthropic SDK."""

from __future__ import annotations

import typing

import anthropic
import pydantic
import pytest

from tests.clients.conftest import CAPITAL, Server
from tests.clients.request_types import path_of, written

pytestmark = pytest.mark.clients
QUESTION = [{"role": "user", "content": CAPITAL}]


@pytest.fixture
def client(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, _strict_response_validation=True)


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


def test_answers_and_errors_have_the_id_of_their_request(server: Server, client: anthropic.Anthropic) -> None:
    asked = {"model": server.model, "max_tokens": 5, "messages": QUESTION}
    whole = client.messages.create(**asked)
    assert whole.id == f"msg_{whole._request_id}"
    with client.messages.stream(**asked) as stream:
        assert stream.get_final_message().id == f"msg_{stream.request_id}"
    assert client.messages.count_tokens(model=server.model, messages=QUESTION)._request_id
    assert client.models.list()._request_id
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.messages.create(**asked | {"model": "nobody"})
    assert refused.value.request_id == typing.cast(dict[str, str], refused.value.body)["request_id"]


def test_the_answer_goes_on_where_a_last_turn_of_the_assistant_ends(
    server: Server, client: anthropic.Anthropic
) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of"}]
    answer = client.messages.create(model=server.model, max_tokens=20, messages=begun, extra_body={"temperature": 0})
    assert answer.content[0].text == " France is Paris."


def test_a_tool_is_called_and_its_result_read(server: Server, client: anthropic.Anthropic) -> None:
    city = {"city": {"type": "string", "maxLength": 20}}
    schema = {"type": "object", "properties": city, "required": ["city"], "additionalProperties": False}
    asked = {"model": server.model, "max_tokens": 60, "extra_body": {"temperature": 0}}
    asked["tools"] = [{"name": "get_weather", "input_schema": schema}]
    question = [{"role": "user", "content": "What is the weather in Paris and Rome?"}]
    whole = client.messages.create(**asked, messages=question)
    assert whole.stop_reason == "tool_use"
    assert [(call.name, call.input) for call in whole.content] == [
        ("get_weather", {"city": "Paris"}),
        ("get_weather", {"city": "Rome"}),
    ]
    with client.messages.stream(**asked, messages=question) as stream:
        streamed = stream.get_final_message()
    assert [(call.name, call.input) for call in streamed.content] == [(call.name, call.input) for call in whole.content]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "20 degrees"} for call in whole.content]
    turns = [{"role": "assistant", "content": whole.content}, {"role": "user", "content": results}]
    answer = client.messages.create(**asked, messages=[*question, *turns])
    assert answer.content[0].type == "text"

    forced = client.messages.create(**asked, messages=QUESTION, tool_choice={"type": "tool", "name": "get_weather"})
    assert [set(call.input) for call in forced.content] == [{"city"}]
    cut = client.messages.create(**asked | {"max_tokens": 15}, messages=question)
    assert (cut.stop_reason, cut.content[-1].input) == ("max_tokens", {})


def test_thinking_with_tools(server: Server, client: anthropic.Anthropic) -> None:
    """Thinking is sent back with the calls, as the API asks for; the bundled model has none, and says so."""
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    asked = {"model": server.model, "max_tokens": 1100, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    asked |= {"tools": [{"name": "get_weather", "input_schema": schema}], "extra_body": {"temperature": 0}}
    question = [{"role": "user", "content": "What is the weather in Paris and Rome?"}]
    raw = client.messages.with_raw_response.create(**asked, messages=question)
    assert "thinking" in raw.headers["x-interlingua-ignored"]
    whole = raw.parse()
    assert [call.input for call in whole.content if call.type == "tool_use"] == [{"city": "Paris"}, {"city": "Rome"}]
    with client.messages.stream(**asked, messages=question) as stream:
        streamed = stream.get_final_message()
    assert [block.model_dump(exclude={"id"}) for block in streamed.content] == [
        block.model_dump(exclude={"id"}) for block in whole.content
    ]
    thought = {"type": "thinking", "thinking": "The user wants the weather.", "signature": "c2lnbmF0dXJl"}
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "20 degrees"} for call in whole.content]
    turns = [{"role": "assistant", "content": [thought, *whole.content]}, {"role": "user", "content": results}]
    assert client.messages.create(**asked, messages=[*question, *turns]).content[-1].type == "text"


def test_tokens_are_counted(server: Server, client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model=server.model, messages=QUESTION)
    whole = client.messages.create(model=server.model, max_tokens=1, messages=QUESTION)
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_errors(server: Server, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model=server.model, max_tokens=0, messages=QUESTION)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="absent", max_tokens=5, messages=QUESTION)


def test_models_are_listed_in_the_sdks_form(server: Server, client: anthropic.Anthropic) -> None:
    (listed,) = [model for model in client.models.list(limit=1) if model.id == server.model]
    assert (listed.type, listed.display_name) == ("model", server.model)
    assert listed.created_at.year >= 2024
    assert client.models.retrieve(server.model) == listed
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nobody")


class City(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: typing.Literal["Paris", "Rome"]
    size: typing.Literal[1, 2, 3]


def test_a_parsed_answer(server: Server, client: anthropic.Anthropic) -> None:
    asked = {"model": server.model, "max_tokens": 60, "messages": QUESTION}
    answer = client.messages.parse(**asked, output_format=City)
    assert isinstance(answer.parsed_output, City)


def test_the_types_whose_fields_are_tested_are_the_installed_ones() -> None:
    """`python -m tests.clients.request_types` writes the file anew; `tests.application.test_every_field` reads it."""
    assert path_of("anthropic").read_text() == written("anthropic")
