"""The official OpenAI SDK."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pydantic
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.clients.conftest import CAPITAL, Server

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, _strict_response_validation=True)


@pytest.fixture(scope="module")
def lax(server: Server) -> openai.OpenAI:
    """Without strict validation: the SDK's type for completion chunks does not allow a null finish_reason."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


MESSAGES = [{"role": "user", "content": CAPITAL}]


def test_chat_whole_equals_streamed(server: Server, client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=server.model, messages=MESSAGES, temperature=0)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    stream = client.chat.completions.create(
        model=server.model, messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat_stream_helper(server: Server, client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=server.model, messages=MESSAGES, temperature=0) as stream:
        assert "Paris" in stream.get_final_completion().choices[0].message.content


def test_completions_whole_equals_streamed(server: Server, lax: openai.OpenAI) -> None:
    arguments = {"model": server.model, "prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}
    whole = lax.completions.create(**arguments)
    streamed = "".join(chunk.choices[0].text for chunk in lax.completions.create(**arguments, stream=True))
    assert whole.choices[0].text
    assert streamed == whole.choices[0].text


def test_logprobs(server: Server, client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model=server.model, messages=MESSAGES, temperature=0, logprobs=True, top_logprobs=2
    )
    tokens = whole.choices[0].logprobs.content
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    assert all(token.logprob == token.top_logprobs[0].logprob for token in tokens)


def test_seed_and_stop(server: Server, client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        answer = client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": "Tell me a story."}],
            temperature=1.0,
            seed=seed,
            stop=["."],
            max_tokens=40,
        )
        return answer.choices[0].message.content

    assert ask(7) == ask(7)
    assert "." not in ask(7)


def test_structured_output(server: Server, client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "known": {"type": "boolean"}},
        "required": ["city", "known"],
        "additionalProperties": False,
    }
    arguments = {"model": server.model, "messages": MESSAGES, "response_format": _format(schema)}
    whole = client.chat.completions.create(**arguments, temperature=0).choices[0].message.content
    parsed = json.loads(whole)
    assert (set(parsed), parsed["city"] in ("Paris", "Rome")) == ({"city", "known"}, True)
    with client.chat.completions.stream(**arguments, temperature=0) as stream:
        assert stream.get_final_completion().choices[0].message.content == whole

    cut = client.chat.completions.create(**arguments, max_tokens=3).choices[0]
    assert cut.finish_reason == "length"


def test_parsed_into_a_model(server: Server, client: openai.OpenAI) -> None:
    class Capital(pydantic.BaseModel):
        city: Literal["Paris", "Rome", "Berlin"]
        population: int = pydantic.Field(ge=0, le=99)
        river: Literal["Seine"] | None

    answer = client.chat.completions.parse(model=server.model, messages=MESSAGES, response_format=Capital)
    assert isinstance(answer.choices[0].message.parsed, Capital)


def _format(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def test_models(server: Server, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [server.model]
    assert client.models.retrieve(server.model).id == server.model


def test_errors(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=server.model, messages=MESSAGES, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(
            model=server.model, messages=MESSAGES, response_format=_format({"uniqueItems": True}), stream=True
        )
    assert '"uniqueItems"' in unsupported.value.message
    assert unsupported.value.param == "response_format"


def test_responses_whole_equals_streamed(server: Server, client: openai.OpenAI) -> None:
    whole = client.responses.create(model=server.model, input=CAPITAL, temperature=0)
    assert "Paris" in whole.output_text
    assert whole.status == "completed"
    with client.responses.stream(model=server.model, input=CAPITAL, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text
    assert final.usage == whole.usage


def test_truncated_responses_are_incomplete(server: Server, client: openai.OpenAI) -> None:
    cut = client.responses.create(model=server.model, input="Tell me a story.", max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_tools(server: Server, client: openai.OpenAI) -> None:
    function = {"name": "get_weather", "strict": True, "parameters": {**CITY, "additionalProperties": False}}
    arguments: Any = {"model": server.model, "tools": [{"type": "function", "function": function}], "temperature": 0}
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    whole = client.chat.completions.create(**arguments, messages=messages).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    with client.chat.completions.stream(**arguments, messages=messages) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert [made.function.arguments for made in streamed.message.tool_calls] == [call.function.arguments]

    messages += [whole.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = client.chat.completions.create(**arguments, messages=messages).choices[0]
    assert answer.message.content

    forced = client.chat.completions.create(**arguments, messages=MESSAGES, tool_choice="required").choices[0]
    assert forced.finish_reason == "tool_calls"
    named = {"type": "function", "function": {"name": "get_weather"}}
    forced = client.chat.completions.create(**arguments, messages=MESSAGES, tool_choice=named).choices[0]
    assert set(json.loads(forced.message.tool_calls[0].function.arguments)) == {"city"}


ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "choices": {"n": 3, "temperature": 1, "seed": 3, "max_tokens": 12},
    "logprobs": {"logprobs": True, "top_logprobs": 20},
    "logprobs of choices": {"n": 2, "temperature": 1, "seed": 3, "logprobs": True, "max_tokens": 12},
    "cut": {"max_tokens": 2},
    "stopped": {"stop": [" of"]},
    "calls": {"tools": True, "messages": "What is the weather in Paris and Rome?"},
    "one call": {"tools": True, "tool_choice": "required", "parallel_tool_calls": False},
    "calls and logprobs": {"tools": True, "tool_choice": "required", "logprobs": True, "top_logprobs": 1},
    "object": {"response_format": {"type": "json_object"}, "messages": "Give me JSON with name Anna and age 7."},
}


@pytest.mark.parametrize("kind", ASKED)
def test_streams_accumulate_to_whole_answers(server: Server, client: openai.OpenAI, kind: str) -> None:
    """Answers match the SDK's types, and the SDK accumulates the chunks to the whole answer."""
    asked = {"model": server.model, "temperature": 0} | ASKED[kind]
    asked["messages"] = [{"role": "user", "content": asked.get("messages", CAPITAL)}]
    if asked.pop("tools", False):
        asked["tools"] = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
    whole = client.chat.completions.create(**asked)
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        state.handle_chunk(chunk)
    streamed = state.current_completion_snapshot
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens
    assert [_comparable(choice) for choice in streamed.choices] == [_comparable(choice) for choice in whole.choices]


def _comparable(choice: Any) -> tuple[Any, ...]:
    """A choice without the ids of its calls, which are random, and with logprobs to 1e-3, which depend on the batch."""
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    logprobs = choice.logprobs.content if choice.logprobs else []
    scores = [(token.token, pytest.approx(token.logprob, abs=1e-3), len(token.top_logprobs)) for token in logprobs]
    return (choice.index, choice.message.role, choice.message.content, choice.finish_reason, calls, scores)


def test_completions_with_every_form_of_prompt(server: Server, client: openai.OpenAI) -> None:
    asked = {"model": server.model, "prompt": ["One, two,", "The capital of France is"], "max_tokens": 5}
    answer = client.completions.create(**asked, n=2, logprobs=5, temperature=1, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        logprobs = choice.logprobs
        assert (
            len(logprobs.tokens)
            == len(logprobs.token_logprobs)
            == len(logprobs.text_offset)
            == len(logprobs.top_logprobs)
        )
    assert len(client.completions.create(**asked, best_of=2).choices) == 2
    echoed = client.completions.create(**asked, echo=True, temperature=0).choices
    assert all(choice.text.startswith(prompt) for choice, prompt in zip(echoed, asked["prompt"], strict=True))


def test_responses_with_a_tool(server: Server, client: openai.OpenAI) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": False}
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked: Any = {"model": server.model, "tools": [tool], "temperature": 0}
    whole = client.responses.create(**asked, input=question)
    (call,) = whole.output
    assert (call.type, json.loads(call.arguments)) == ("function_call", {"city": "Paris"})
    with client.responses.stream(**asked, input=question) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert "".join(pieces) == final.output[0].arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "20 degrees, sunny"}
    answer = client.responses.create(**asked, input=[*question, call.to_dict(), result])
    assert "Paris" in answer.output_text


def test_responses_are_parsed(server: Server, client: openai.OpenAI) -> None:
    class Person(pydantic.BaseModel):
        name: str
        age: int

    question = "Give me JSON with name Anna and age 7."
    answer = client.responses.parse(model=server.model, input=question, text_format=Person, temperature=0)
    assert answer.output_parsed == Person(name="Anna", age=7)


def test_embeddings(server: Server, client: openai.OpenAI, lax: openai.OpenAI) -> None:
    texts = ["The weather in Paris is sunny.", "The weather in Rome is sunny.", "1 + 1 = 2"]
    packed = lax.embeddings.create(model=server.model, input=texts)  # asks for base64, which its type does not allow
    plain = client.embeddings.create(model=server.model, input=texts, encoding_format="float")
    vectors = [entry.embedding for entry in plain.data]
    assert [entry.embedding for entry in packed.data] == [pytest.approx(vector, abs=1e-6) for vector in vectors]
    near, far = (sum(a * b for a, b in zip(vectors[0], vectors[place], strict=True)) for place in (1, 2))
    assert far < near < 1
    (short,) = lax.embeddings.create(model=server.model, input=texts[0], dimensions=16).data
    assert len(short.embedding) == 16


CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}


WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def test_legacy_functions_are_called_and_their_result_is_read(server: Server, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": server.model, "temperature": 0, "max_tokens": 60, "functions": [WEATHER]}
    asked |= {"messages": [{"role": "user", "content": "What is the weather in Paris?"}]}
    forced = {"function_call": {"name": "get_weather"}}
    choice = client.chat.completions.create(**asked, **forced).choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("function_call", None)
    assert set(json.loads(choice.message.function_call.arguments)) == {"city"}
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, **forced, stream=True)]
    calls = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call]
    assert calls[0].name == "get_weather"
    assert "".join(call.arguments or "" for call in calls) == choice.message.function_call.arguments
    assert chunks[-1].finish_reason == "function_call"
    asked["messages"] += [
        choice.message.model_dump(exclude_none=True, exclude={"annotations"}),
        {"role": "function", "name": "get_weather", "content": "Sunny."},
    ]
    assert client.chat.completions.create(**asked, function_call="none").choices[0].message.function_call is None


def test_azures_client(server: Server) -> None:
    azure = openai.AzureOpenAI(azure_endpoint=server.url, api_key="unused", api_version="2024-10-21", max_retries=0)
    whole = azure.chat.completions.create(model=server.model, messages=MESSAGES, temperature=0)
    assert "Paris" in whole.choices[0].message.content
    assert azure.completions.create(model=server.model, prompt="One, two,", max_tokens=4).choices[0].text
    assert server.model in [model.id for model in azure.models.list()]
    assert azure.responses.create(model=server.model, input=CAPITAL, temperature=0).output_text


def test_a_model_under_the_names_of_tgis_clients(server: Server, client: openai.OpenAI) -> None:
    for name in ("tgi", "", server.url):
        answer = client.chat.completions.create(model=name, messages=MESSAGES, temperature=0)
        assert answer.model == server.model
