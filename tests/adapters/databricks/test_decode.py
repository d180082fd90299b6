"""The page's parameters, table by table: each has its effect, or is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from adapters.base import Call
from adapters.fold import fold
from backends.base import ignored_fields
from backends.scripted import ScriptedBackend
from schemas.catalog import Catalog, ModelCard
from schemas.errors import BackendFailed, InvalidRequest, MalformedBody, UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Embed,
    Generate,
    Grammar,
    Message,
    Sampling,
    Stopping,
    TextPrompt,
    TokensPrompt,
    Tool,
    ToolCall,
    ToolChoice,
)
from tests.adapters.databricks.scenes import ROUTES, call, chat, completion, query, server
from tests.adapters.openai.scenes import HELLO, ZOE

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {}}


def test_the_defaults_of_a_chat() -> None:
    request = chat()
    assert (request.model, request.prompts) == ("chat", (ChatPrompt((Message("user", "Hello"),)),))
    assert request.sampling == Sampling(do_sample=True)
    assert request.stopping == Stopping()
    assert (request.n, request.stream, request.tools, request.tool_choice) == (1, False, (), None)
    assert (request.logprobs, request.top_logprobs, request.grammar) == (False, 0, None)


def test_a_completion_is_a_users_message_by_default() -> None:
    request = completion()
    assert request.prompts == (TextPrompt("Once"),)
    assert not request.raw_prompt
    assert request.stopping == Stopping()
    assert (request.n, request.stream, request.echo, request.suffix, request.hints) == (1, False, False, None, {})


def test_streaming_is_the_default_only_if_configured() -> None:
    """The page documents `true`, with which every client that omits the field fails."""
    assert not chat().stream
    assert chat(stream=True).stream
    assert chat(options={"stream_default": True}).stream


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"temperature": 0}, Sampling(do_sample=True, temperature=0.0)),
        ({"temperature": 2}, Sampling(do_sample=True, temperature=2.0)),
        ({"temperature": None}, Sampling(do_sample=True)),
        ({"top_p": 1}, Sampling(do_sample=True, top_p=1.0)),
        ({"top_p": 0.1}, Sampling(do_sample=True, top_p=0.1)),
        ({"top_k": 1}, Sampling(do_sample=True, top_k=1)),
        ({"top_k": None}, Sampling(do_sample=True)),
    ],
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_sampling(ask: Any, fields: dict[str, Any], sampling: Sampling) -> None:
    request = ask(**fields)
    assert request.sampling == sampling
    assert request.sampling.greedy == (fields.get("temperature") == 0)


@pytest.mark.parametrize(
    ("fields", "stopping"),
    [
        ({"max_tokens": None}, Stopping()),
        ({"max_tokens": 1}, Stopping(max_new_tokens=1)),
        ({"stop": "a"}, Stopping(stop=("a",))),
        ({"stop": ["a"] * 5}, Stopping(stop=("a",) * 5)),
        ({"stop": []}, Stopping()),
    ],
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_stopping(ask: Any, fields: dict[str, Any], stopping: Stopping) -> None:
    assert ask(**fields).stopping == stopping


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("max_tokens", 0, "null or an integer greater than 0"),
        ("top_k", 0, "null or an integer greater than 0"),
        ("top_k", -1, "null or an integer greater than 0"),
        ("temperature", -0.1, "in [0, 2]"),
        ("temperature", 2.1, "in [0, 2]"),
        ("top_p", 0, "in (0, 1]"),
        ("top_p", 1.1, "in (0, 1]"),
        ("n", 0, "an integer greater than 0 and not over 128"),
        ("n", 129, "an integer greater than 0 and not over 128"),
    ],
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_bounds(ask: Any, field: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(**{field: value})
    assert caught.value.param == field
    assert caught.value.message == f"Parameter '{field}' must be {words}, got {value}."


def test_tools() -> None:
    request = chat(tools=[TOOL] * 32, n=2)
    assert request.tools == (Tool("f", "d", {"type": "object"}),) * 32
    assert request.n == 2


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("named", ("f",))),
    ],
)
def test_tool_choice(given: Any, choice: ToolChoice) -> None:
    assert chat(tools=[TOOL], tool_choice=given).tool_choice == choice


@pytest.mark.parametrize(
    ("given", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Grammar("json_object")),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "description": "d", "schema": SCHEMA, "strict": True}},
            Grammar("json_schema", SCHEMA, "a", True),
        ),
    ],
)
def test_response_format(given: Any, grammar: Grammar | None) -> None:
    assert chat(response_format=given).grammar == grammar


def test_logprobs() -> None:
    assert (chat(logprobs=True).logprobs, chat(logprobs=True).top_logprobs) == (True, 0)
    assert chat(logprobs=True, top_logprobs=20).top_logprobs == 20


def tool_of(count: int) -> dict[str, Any]:
    properties = {f"p{place}": {} for place in range(count)}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"tools": [TOOL] * 33},
            "tools",
            "Invalid 'tools': array too long. Expected an array with maximum length 32, "
            "but got an array with length 33 instead.",
        ),
        (
            {"tools": [TOOL, tool_of(16)]},
            "tools[1].function.parameters",
            "Invalid 'tools[1].function.parameters': 16 properties are more than the limit of 15.",
        ),
        ({"tool_choice": "required"}, "tool_choice", "'tool_choice' is only allowed when 'tools' are specified."),
        (
            {"top_logprobs": 1},
            "top_logprobs",
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
        ),
        (
            {"logprobs": True, "top_logprobs": 21},
            "top_logprobs",
            "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got 21 instead.",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "Missing required parameter: 'response_format.json_schema'.",
        ),
    ],
)
def test_refusals_of_chats(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert (caught.value.param, caught.value.message) == (param, message)


def test_fifteen_properties_are_accepted() -> None:
    assert len(chat(tools=[tool_of(15)]).tools) == 1


def test_tools_other_than_functions_are_refused() -> None:
    request = chat(tools=[{"type": "custom"}])
    with pytest.raises(UnsupportedFeature) as caught:
        ignored_fields(request, ScriptedBackend("s"))
    assert caught.value.param == "tools[0].type"


# --- completions ------------------------------------------------------------------------------------------------------


def test_completion_options() -> None:
    request = completion(prompt=["a", "b"], n=2, echo=True, use_raw_prompt=True, suffix=" end", error_behavior="error")
    assert request.prompts == (TextPrompt("a"), TextPrompt("b"))
    assert (request.n, request.echo, request.raw_prompt) == (2, True, True)
    assert (request.suffix, request.answer_suffix, request.hints) == (None, " end", {})
    assert request.truncate_prompt_tokens is None
    assert completion(suffix="").answer_suffix == ""


@pytest.mark.parametrize("stream", [False, True])
def test_hints_do_not_control_the_answer(stream: bool) -> None:
    hints = {"append": "!", "continuous_usage_stats": True, "stored": b"[]", "error_behavior": "truncate"}
    request = completion(stream=stream)
    hinted = replace(request, hints=hints)
    if stream:
        assert server().encoder(hinted).feed(ZOE) == server().encoder(request).feed(ZOE)
    assert server().encode(hinted, fold(ZOE)) == server().encode(request, fold(ZOE))
    assert (hinted.overflow, hinted.answer_suffix, hinted.stored_items) == ("refuse", "", None)


def test_the_tokens_of_a_rendered_template_are_not_returned() -> None:
    assert completion(echo=True, logprobs=1, use_raw_prompt=True).prompt_logprobs
    assert not completion(echo=True, logprobs=1).prompt_logprobs


@pytest.mark.parametrize(
    ("fields", "limit", "room"),
    [
        ({}, None, 2047),
        ({"max_tokens": 5}, 5, 2047),
        ({"max_tokens": 9999}, 2047, 2047),
        ({"truncate_prompt_tokens": 8}, None, 8),
        ({"truncate_prompt_tokens": 9999}, None, 2047),
    ],
)
def test_truncation_leaves_room_for_one_token(fields: dict[str, Any], limit: int | None, room: int) -> None:
    request = completion(error_behavior="truncate", **fields)
    assert (request.stopping.max_new_tokens, request.truncate_prompt_tokens) == (limit, room)
    assert (request.overflow, request.hints) == ("truncate", {})


def test_truncation_of_a_model_whose_context_is_unknown() -> None:
    body = json.dumps({"prompt": "a", "error_behavior": "truncate"}).encode()
    request = server().decode(ROUTES["invocations"], body, Call("r1", Catalog({}), {"name": "m"}))
    assert isinstance(request, Generate)
    assert request.truncate_prompt_tokens is None
    assert (request.overflow, request.hints) == ("truncate", {})


def test_an_unknown_error_behavior_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(error_behavior="ignore")
    assert caught.value.param == "error_behavior"


# --- one URL, three tasks ---------------------------------------------------------------------------------------------


def test_the_body_decides_the_task() -> None:
    assert isinstance(chat().prompts[0], ChatPrompt)
    assert completion(prompt=[1, 2]).prompts == (TokensPrompt((1, 2)),)
    embedding = query({"input": ["a", "b"]})
    assert isinstance(embedding, Embed)
    assert embedding.inputs == (TextPrompt("a"), TextPrompt("b"))


@pytest.mark.parametrize("body", [{}, {"inputs": "a"}, {"messages": None}])
def test_a_body_of_no_task_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="The body must have one of 'messages'"):
        query(body)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff"])
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        server().decode(ROUTES["invocations"], body, call(name="chat"))


def test_the_path_names_the_endpoint() -> None:
    assert chat(model="another").model == "chat"
    served = query({"messages": HELLO}, operation="served_invocations", name="chat", served="challenger")
    assert served.model == "chat:challenger"


@pytest.mark.parametrize(
    ("operation", "body"),
    [("chat", {"messages": HELLO}), ("completions", {"prompt": "a"}), ("embeddings", {"input": "a"})],
)
def test_openais_paths_have_the_endpoint_in_the_body(operation: str, body: dict[str, Any]) -> None:
    assert query(body | {"model": "chat"}, operation=operation).model == "chat"
    with pytest.raises(InvalidRequest, match="Missing required parameter: 'model'"):
        query(body, operation=operation)


def test_the_context_that_the_sdk_adds_becomes_hints() -> None:
    context = {"client_request_id": "c1", "usage_context": {"team": "a"}, "extra_params": {"x": "1"}}
    for request in (chat(**context), completion(**context)):
        assert request.client_request_id == "c1"
        assert request.hints == {"usage_context": {"team": "a"}, "extra_params": {"x": "1"}}
    assert query({"input": "a", "client_request_id": "c1"}).client_request_id == "c1"


def test_unknown_fields() -> None:
    assert chat(max_retries=0).extra == {"max_retries": 0}
    with pytest.raises(InvalidRequest) as caught:
        chat(options={"strict": True}, max_retries=0)
    assert caught.value.message == 'json: unknown field "max_retries"'


# --- order of roles ---------------------------------------------------------------------------------------------------

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKS = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "c1"}
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hi"}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [SYSTEM, USER],
        [SYSTEM, USER, ASSISTANT, USER],
        [USER, ASKS, RESULT],
        [USER, ASKS, RESULT, RESULT],
        [USER, ASKS, RESULT, ASSISTANT, USER],
        [USER, ASKS, RESULT, USER],
        [USER, ASKS, RESULT, ASKS, RESULT],
    ],
)
def test_conversations_whose_roles_alternate_are_accepted(messages: list[dict[str, Any]]) -> None:
    [prompt] = chat(messages=messages).prompts
    assert isinstance(prompt, ChatPrompt)
    assert [message.role for message in prompt.messages] == [message["role"] for message in messages]
    assert all(message.tool_calls == (ToolCall("c1", "f", "{}"),) for message in prompt.messages if not message.content)


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([], "messages", "empty array"),
        ([SYSTEM], "messages", "the last message must be a user message"),
        ([USER, ASSISTANT], "messages", "the last message must be a user message"),
        ([USER, SYSTEM], "messages[1]", "a system message may only be the first message, and only once"),
        ([SYSTEM, SYSTEM, USER], "messages[1]", "a system message may only be the first message, and only once"),
        ([USER, USER], "messages[1]", "a message of role 'user' cannot follow one of role 'user'"),
        ([USER, ASSISTANT, ASSISTANT], "messages[2]", "'assistant' cannot follow one of role 'assistant'"),
        ([ASSISTANT, USER], "messages[0]", "a conversation cannot begin with a message of role 'assistant'"),
        ([USER, RESULT], "messages[1]", "a message of role 'tool' cannot follow one of role 'user'"),
        ([USER | {"tool_calls": [CALL]}], "messages[0].tool_calls", "only for messages of role 'assistant'"),
        ([USER | {"tool_call_id": "c1"}], "messages[0].tool_call_id", "only for messages of role 'tool'"),
        ([USER, ASKS, {"role": "tool", "content": "4"}], "messages[2].tool_call_id", "Missing required parameter"),
        ([{"role": "developer", "content": "a"}], "messages[0].role", "Supported values are: 'system', 'user'"),
    ],
)
def test_roles_out_of_order_are_refused(messages: list[dict[str, Any]], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(messages=messages)
    assert caught.value.param == param
    assert words in caught.value.message


def test_an_assistant_may_say_something_beside_its_calls() -> None:
    """As answers do, and as `databricks_langchain` sends them back."""
    read = chat(messages=[USER, ASKS | {"content": "Let me look."}, RESULT]).prompts[0]
    assert read.messages[1].content == "Let me look."
    assert [call.name for call in read.messages[1].tool_calls] == ["f"]


def test_the_order_of_roles_is_an_option() -> None:
    assert chat(options={"alternating_roles": False}, messages=[USER, USER]).prompts


# --- responses --------------------------------------------------------------------------------------------------


def test_a_response_has_openais_form() -> None:
    request = query({"model": "chat", "input": "Hi", "max_output_tokens": 5}, operation="responses")
    assert isinstance(request, Generate)
    assert (request.model, request.prompts, request.stopping.max_new_tokens) == (
        "chat",
        (ChatPrompt((Message("user", "Hi"),)),),
        5,
    )
    response = json.loads(server().encode(request, fold(ZOE)).body)
    assert (response["object"], response["status"]) == ("response", "completed")
    stream = server().encoder(request)
    assert stream.feed(ZOE).startswith(b"event: response.created\n")
    assert b'"type":"response.failed"' in server().encoder(request).fail(BackendFailed("x"))


def test_the_paths_of_newer_clients_give_the_same_answers() -> None:
    fields = {"model": "chat", "messages": HELLO, "max_tokens": 5}
    ways = [query(fields, operation=operation) for operation in ("gateway_chat", "chat")]
    assert replace(ways[0], origin=None) == replace(ways[1], origin=None)
    vectors = query({"model": "chat", "input": "Hi"}, operation="gateway_embeddings")
    assert isinstance(vectors, Embed)
    assert vectors.inputs == (TextPrompt("Hi"),)
    paths = {ROUTES[name].path for name in ("gateway_chat", "gateway_embeddings")}
    assert paths == {"/ai-gateway/mlflow/v1/chat/completions", "/ai-gateway/mlflow/v1/embeddings"}


def test_the_tools_of_a_response_have_databricks_limits() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"properties": {f"p{n}": {} for n in range(16)}}}
    for tools, param in (([tool], "tools[0].parameters"), ([tool | {"parameters": {}}] * 33, "tools")):
        with pytest.raises(InvalidRequest) as raised:
            query({"model": "chat", "input": "Hi", "tools": tools}, operation="responses")
        assert raised.value.param == param


def test_a_function_needs_a_description() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    with pytest.raises(InvalidRequest) as error:
        chat(tools=[TOOL, tool])
    assert error.value.param == "tools[1].function.description"
    assert chat(tools=[tool], options={"tool_descriptions": False}).tools


@pytest.mark.parametrize(
    ("task", "body", "param"),
    [("completions", {"messages": HELLO}, "messages"), ("chat", {"prompt": "Once"}, "prompt")],
)
def test_a_body_of_another_task_than_the_declared_one_is_refused(task: Any, body: dict[str, Any], param: str) -> None:
    def ask(card: ModelCard) -> Any:
        call = Call("r1", Catalog({"chat": card}, "chat"), {"name": "chat"})
        return server().decode(ROUTES["invocations"], json.dumps(body).encode(), call)

    with pytest.raises(InvalidRequest, match=f"has the task llm/v1/{task}: send ") as error:
        ask(ModelCard(name="chat", task=task, declared_task=True))
    assert error.value.param == param
    assert ask(ModelCard(name="chat", task=task))  # a default is no declaration
