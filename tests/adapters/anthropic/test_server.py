"""The Messages API: requests decoded and answers encoded, byte by byte, as in Anthropic's reference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.anthropic import ADAPTER
from adapters.anthropic.messages import CONTINUED
from adapters.base import Call
from adapters.fold import fold
from backends.base import check_unread
from schemas.catalog import Catalog
from schemas.errors import (
    KINDS,
    BackendFailed,
    GatewayError,
    Incomplete,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RateLimited,
    Unauthorized,
    UnsupportedFeature,
)
from schemas.ir import (
    ChatPrompt,
    Delta,
    Events,
    Finished,
    FinishReason,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Sampling,
    Started,
    Stopping,
    TemplateOptions,
    TextPart,
    Tokens,
    TokenSpan,
    Tool,
    ToolCall,
    ToolChoice,
    ToolDelta,
    Usage,
)
from schemas.left_out import left_out

SERVER = ADAPTER.server(ADAPTER.dialects["anthropic"])
ROUTES = {route.name: route for route in SERVER.routes}
WEATHER = {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object", "properties": {}}}
LIVE: Events = (
    Started("m", 9),
    Delta(text="Let me "),
    Delta(text="see\u2028."),
    Delta(tool_calls=(ToolDelta(0, "toolu_1", "get_weather"),)),
    Delta(tool_calls=(ToolDelta(0, arguments='{"city": '),)),
    Delta(tool_calls=(ToolDelta(0, arguments='"Paris"}'),)),
    Finished(reason=FinishReason.TOOL_CALL, generated=20),
    Usage(9, 20, cached_tokens=4),
)


def decode(body: dict[str, Any], route: str = "messages") -> Any:
    return SERVER.decode(ROUTES[route], json.dumps(body).encode(), Call("r1", Catalog({})))


def ask(**fields: Any) -> Generate:
    body = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Hi"}]}
    request = decode(body | fields)
    assert isinstance(request, Generate)
    return request


PREFILLED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello,"}]


@pytest.mark.parametrize("content", ["Hello,", [{"type": "text", "text": "Hello,"}]])
def test_the_answer_goes_on_where_a_last_turn_of_the_assistant_ends(content: Any) -> None:
    prompt = ask(messages=[PREFILLED[0], {"role": "assistant", "content": content}]).prompts[0]
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template == CONTINUED
    assert [message.role for message in prompt.messages] == ["user", "assistant"]
    body = json.dumps({"model": "m", "max_tokens": 10, "messages": PREFILLED}).encode()
    assert SERVER.read_plain(ROUTES["messages"], body, Call("r1", Catalog({}))) is None


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_a_last_turn_of_the_assistant_without_text_is_the_answer(content: Any) -> None:
    request = ask(messages=[PREFILLED[0], {"role": "assistant", "content": content}])
    assert request.prompts == ask().prompts


def test_other_last_turns_of_the_assistant_are_not_continued() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    prompt = ask(messages=[PREFILLED[0], {"role": "assistant", "content": [call]}]).prompts[0]
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template == TemplateOptions()
    with pytest.raises(InvalidRequest, match="final assistant content cannot end with trailing whitespace"):
        ask(messages=[PREFILLED[0], {"role": "assistant", "content": "Hello, "}])


def test_a_named_tool_choice_needs_a_name() -> None:
    with pytest.raises(InvalidRequest, match=r"^tool_choice\.name: Field required$"):
        ask(tools=[WEATHER], tool_choice={"type": "tool"})


def test_a_model_that_cannot_go_on_refuses_in_the_protocols_words() -> None:
    error = UnsupportedFeature("The model 'm' does not support template options yet.", feature="template_options")
    assert json.loads(SERVER.error(error).body)["error"] == {
        "type": "invalid_request_error",
        "message": "This model does not support assistant message prefill. "
        "The conversation must end with a user message.",
    }


def test_the_smallest_request() -> None:
    request = ask()
    assert request.prompts == (ChatPrompt((Message("user", "Hi"),)),)
    assert request.sampling == Sampling(do_sample=True)
    assert request.stopping == Stopping(max_new_tokens=10)
    assert not request.stream


def test_every_parameter() -> None:
    request = ask(
        system=[{"type": "text", "text": "Be brief."}],
        stop_sequences=["END"],
        stream=True,
        temperature=0,
        top_p=0.5,
        top_k=3,
        metadata={"user_id": "u1"},
        tools=[WEATHER],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
        service_tier="auto",
        something={"new": 1},
    )
    assert request.prompts[0] == ChatPrompt((Message("system", (TextPart("Be brief."),)), Message("user", "Hi")))
    assert request.sampling == Sampling(do_sample=True, temperature=0, top_p=0.5, top_k=3)
    assert request.sampling.greedy
    assert request.stopping.stop == ("END",)
    assert request.stream
    assert request.user == "u1"
    assert request.tools == (Tool("get_weather", "Weather", WEATHER["input_schema"]),)  # type: ignore[arg-type]
    assert request.tool_choice == ToolChoice("named", ("get_weather",))
    assert request.parallel_tool_calls is False
    assert request.hints == {"service_tier": "auto", "thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert request.extra == {"something": {"new": 1}}


def test_blocks() -> None:
    request = ask(
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "QUJD"}},
                    {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
                    {"type": "text", "text": "What?"},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I ask."},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "5"}]},
                    {"type": "text", "text": "And?"},
                ],
            },
        ]
    )
    assert request.prompts[0] == ChatPrompt(
        (
            Message(
                "user",
                (
                    ImagePart("data:image/jpeg;base64,QUJD", "data"),
                    ImagePart("https://example.com/a.png", "url"),
                    TextPart("What?"),
                ),
            ),
            Message("assistant", (TextPart("I ask."),), tool_calls=(ToolCall("t1", "f", '{"a":1}'),), reasoning="Hm."),
            Message("tool", (TextPart("5"),), tool_call_id="t1"),
            Message("user", (TextPart("And?"),)),
        )
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.source"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [" "]}, "stop_sequences"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
    ],
)
def test_refusals_name_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask(**fields)
    assert raised.value.param == param


SEARCH = {"type": "web_search_20250305", "name": "web_search"}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "search_result", "source": "x"}]}


@pytest.mark.parametrize(
    ("fields", "param", "feature"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages.0.content.0.type", "document"),
        ({"messages": [{"role": "user", "content": [RESULT]}]}, "messages.0.content.0.content.0.type", "search_result"),
        ({"tools": [WEATHER, SEARCH]}, "tools.1.type", "web_search_20250305"),
        ({"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "tools.0.type", SEARCH["type"]),
    ],
)
def test_what_only_a_remote_of_the_protocol_understands(fields: dict[str, Any], param: str, feature: str) -> None:
    request = ask(**fields)
    assert [(part.param, part.feature) for part in request.unread] == [(param, feature)]
    assert ADAPTER.client(ADAPTER.dialects["anthropic"]).ignored(request) == ()
    check_unread(request, ())
    assert request.foreign_fields == (param,)
    with pytest.raises(UnsupportedFeature) as raised:
        check_unread(request, request.foreign_fields)
    assert raised.value.param == param
    assert feature in raised.value.message


CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": CITY}}},
        {"output_format": {"type": "json_schema", "schema": CITY}},
        {
            "output_format": {"type": "json_schema", "schema": {}},
            "output_config": {"format": {"type": "json_schema", "schema": CITY}},
        },
    ],
)
def test_a_schema_of_the_answer(fields: dict[str, Any]) -> None:
    request = ask(**fields)
    assert request.grammar == Grammar("json_schema", CITY)
    assert request.unknown == ()


@pytest.mark.parametrize("format", [{"type": "text"}, {"type": "json_schema"}])
def test_a_format_without_a_schema_is_refused(format: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"output_config\.format"):
        ask(output_config={"format": format})


def test_an_effort_is_a_hint() -> None:
    assert ask(output_config={"effort": "low"}).hints == {"reasoning_effort": "low"}


@pytest.mark.parametrize("field", ["mcp_servers", "container", "context_management", "inference_geo"])
def test_fields_of_anthropics_own_servers_are_named(field: str) -> None:
    request = ask(**{field: ["x"]})
    assert [(part.param, part.feature) for part in request.unread] == [(field, field)]
    assert ask(**{field: []}).unread == ()


@pytest.mark.parametrize("edits", [[], [{"type": "clear_thinking_20251015", "keep": "all"}]])
def test_clearing_thoughts_changes_nothing_elsewhere(edits: list[dict[str, Any]]) -> None:
    """Claude Code sends it by itself with each request."""
    request = ask(context_management={"edits": edits})
    assert (request.unread, request.unknown) == ((), ("context_management",))


@pytest.mark.parametrize(
    "given",
    [
        {"edits": [{"type": "clear_tool_uses_20250919"}]},
        {"edits": [{"type": "clear_thinking_20251015"}, {"type": "compact_20260112"}]},
        {"edits": [], "more": 1},
        {"edits": None},
    ],
)
def test_other_management_of_the_context_is_named(given: dict[str, Any]) -> None:
    assert [part.param for part in ask(context_management=given).unread] == ["context_management"]


def test_hints_for_the_cache_are_named_once_and_refused_by_nobody() -> None:
    cached = {"type": "ephemeral"}
    block = {"type": "text", "text": "Hi", "cache_control": cached}
    messages = [{"role": "user", "content": [block]}]
    fields = {"messages": messages, "system": [block], "tools": [WEATHER | {"cache_control": cached}]}
    assert ask(**fields, cache_control=cached).unknown == ("cache_control",)
    assert ask(**fields).unknown == ("tools[0].cache_control",)
    assert ask(messages=messages).unknown == ("messages[0].content[0].cache_control",)
    assert ask(**fields).unread == ()


def test_what_changes_nothing_is_named() -> None:
    enabled = {"type": "enabled", "budget_tokens": 1024}
    assert left_out(ask(thinking=enabled)) == ("thinking",)
    assert ask(thinking=enabled | {"display": "omitted"}).unknown == ("thinking.display",)
    call = {"type": "tool_use", "id": "c", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "No.", "is_error": True}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert ask(messages=turns).unknown == ("messages[1].content[0].is_error",)


def test_a_system_message_within_the_conversation() -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "system", "content": [{"type": "text", "text": "Be short."}]}]
    (prompt,) = ask(messages=turns).prompts
    assert prompt == ChatPrompt((Message("user", "Hi"), Message("system", (TextPart("Be short."),))))


def test_the_tokens_of_an_input_are_counted() -> None:
    request = decode({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, "count_tokens")
    spans = tuple(TokenSpan(place, "x", place, place + 1) for place in range(7))
    assert SERVER.encode_tokens(request, Tokens(spans, "x" * 7)).body == b'{"input_tokens":7}'
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [WEATHER]}
    assert decode(asked, "count_tokens").tools == decode(asked | {"max_tokens": 5}).tools != ()
    assert decode(asked | {"tool_choice": {"type": "none"}}, "count_tokens").tools == ()
    with pytest.raises(InvalidRequest):
        decode(asked | {"tools": [{"name": "f"}]}, "count_tokens")


def test_a_stream() -> None:
    assert SERVER.encoder(ask(stream=True)).feed(LIVE).decode() == (
        "event: message_start\n"
        'data: {"type":"message_start","message":{"id":"msg_r1","type":"message","role":"assistant","model":"m",'
        '"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":9,'
        '"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}\n\n'
        "event: content_block_start\n"
        'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
        "event: content_block_delta\n"
        'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Let me "}}\n\n'
        "event: content_block_delta\n"
        'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"see\\u2028."}}\n\n'
        "event: content_block_stop\n"
        'data: {"type":"content_block_stop","index":0}\n\n'
        "event: content_block_start\n"
        'data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1",'
        '"name":"get_weather","input":{}}}\n\n'
        "event: content_block_delta\n"
        'data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta",'
        '"partial_json":"{\\"city\\": "}}\n\n'
        "event: content_block_delta\n"
        'data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta",'
        '"partial_json":"\\"Paris\\"}"}}\n\n'
        "event: content_block_stop\n"
        'data: {"type":"content_block_stop","index":1}\n\n'
        "event: message_delta\n"
        'data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":'
        '{"input_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":20}}\n\n'
        'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )


def test_a_whole_answer() -> None:
    assert SERVER.encode(ask(), fold(LIVE)).body.decode() == (
        '{"id":"msg_r1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"Let me '
        'see\\u2028."},{"type":"tool_use","id":"toolu_1","name":"get_weather","input":{"city": "Paris"}}],'
        '"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":5,"cache_creation_input_tokens":0,'
        '"cache_read_input_tokens":4,"output_tokens":20}}'
    )


@pytest.mark.parametrize(
    ("finished", "reason", "stop"),
    [
        (Finished(reason=FinishReason.EOS), "end_turn", None),
        (Finished(reason=FinishReason.LENGTH), "max_tokens", None),
        (Finished(reason=FinishReason.STOP_STRING, stop="END"), "stop_sequence", "END"),
        (Finished(reason=FinishReason.CONTENT_FILTER), "refusal", None),
        (Finished(reason=FinishReason.EOS, refusal="No."), "refusal", None),
    ],
)
def test_finish_reasons(finished: Finished, reason: str, stop: str | None) -> None:
    answer = json.loads(SERVER.encode(ask(), fold((Started("m", 1), finished, Usage(1, 1)))).body)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, stop)


@pytest.mark.parametrize("arguments", ['{"a', "[]", '{"a":' * 5000], ids=["cut", "an array", "no end of members"])
def test_a_tool_call_whose_arguments_are_no_object_is_a_failure(arguments: str) -> None:
    events = (
        Started("m", 1),
        Delta(tool_calls=(ToolDelta(0, "t", "f", arguments),)),
        Finished(reason=FinishReason.TOOL_CALL),
        Usage(1, 1),
    )
    with pytest.raises(BackendFailed):
        SERVER.encode(ask(), fold(events))


def test_every_kind_of_error_has_an_answer() -> None:
    assert set(ADAPTER.dialects["anthropic"].wording.failures) == set(KINDS)


@pytest.mark.parametrize(
    ("error", "status", "type"),
    [
        (InvalidRequest("Because."), 400, "invalid_request_error"),
        (Unauthorized("Because."), 401, "authentication_error"),
        (ModelNotFound("Because."), 404, "not_found_error"),
        (RateLimited("Because.", retry_after=3), 429, "rate_limit_error"),
        (Overloaded("Because.", retry_after=1), 529, "overloaded_error"),
        (BackendFailed("Because."), 502, "api_error"),
        (Incomplete("Because."), 502, "api_error"),
    ],
)
def test_errors(error: GatewayError, status: int, type: str) -> None:
    reply = SERVER.error(error)
    assert reply.status == status
    assert reply.body.decode() == f'{{"type":"error","error":{{"type":"{type}","message":"Because."}}}}'
    assert dict(reply.headers) == ({"retry-after": f"{error.retry_after}"} if error.retry_after else {})
    assert SERVER.encoder(ask(stream=True)).fail(error) == b"event: error\ndata: %b\n\n" % reply.body
