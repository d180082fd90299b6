"""The Responses API: requests, and answers whole and as typed events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from adapters.fold import fold
from adapters.objects import Delete, Get
from adapters.openai import RESPONSES
from backends.base import ignored_fields
from backends.scripted import ScriptedBackend
from schemas.errors import BackendFailed, InvalidRequest, RouteNotFound, UnsupportedFeature
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
    TextPart,
    Token,
    Tokenize,
    Tokens,
    TokenSpan,
    Tool,
    ToolCall,
    ToolChoice,
    ToolDelta,
    TopToken,
    Usage,
)
from tests.adapters.openai.scenes import ROUTES, call, client, server

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": True}
EVENTS: Events = (
    Started("m", 9),
    Delta(reasoning="Hm."),
    Delta(text="Hel"),
    Delta(text="lo\u2028"),
    Delta(tool_calls=(ToolDelta(0, "call_1", "f"),)),
    Delta(tool_calls=(ToolDelta(0, arguments='{"a":'),)),
    Delta(tool_calls=(ToolDelta(0, arguments="1}"),)),
    Delta(tool_calls=(ToolDelta(1, "call_2", "g", "{}"),)),
    Finished(reason=FinishReason.TOOL_CALL, generated=20),
    Usage(9, 20, cached_tokens=4, reasoning_tokens=3),
)


def ask(**fields: Any) -> Generate:
    body = {"model": "m", "input": "Hi"} | fields
    request = server().decode(ROUTES["responses"], json.dumps(body).encode(), call())
    assert isinstance(request, Generate)
    return request


def events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream; asserts that their names are their types and that no sequence number is missing."""
    streamed = []
    for block in data.decode().split("\n\n")[:-1]:
        name, line = block.split("\n")
        event = json.loads(line.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(streamed)
        streamed.append(event)
    return streamed


def test_the_smallest_request() -> None:
    request = ask()
    assert request.prompts == (ChatPrompt((Message("user", "Hi"),)),)
    assert request.sampling == Sampling(do_sample=True)
    assert not request.stream


def test_every_parameter() -> None:
    request = ask(
        instructions="Be brief.",
        max_output_tokens=7,
        temperature=0,
        top_p=0.5,
        stream=True,
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "get_weather"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        reasoning={"effort": "low"},
        metadata={"a": "b"},
        user="u1",
        store=False,
        new=1,
    )
    assert request.prompts == (ChatPrompt((Message("system", "Be brief."), Message("user", "Hi"))),)
    assert request.sampling == Sampling(do_sample=True, temperature=0, top_p=0.5)
    assert request.stopping.max_new_tokens == 7
    assert request.stream
    assert request.tools == (Tool("get_weather", None, {"type": "object"}, True),)
    assert request.tool_choice == ToolChoice("named", ("get_weather",))
    assert request.parallel_tool_calls is False
    assert request.grammar == Grammar("json_schema", {"type": "object"}, "n", True)
    assert request.hints == {"reasoning_effort": "low", "metadata": {"a": "b"}}
    assert (request.user, request.extra) == ("u1", {"new": 1})


def test_items() -> None:
    items = [
        {"role": "developer", "content": "Be kind."},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What?"},
                {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
            ],
        },
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I ask.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "6"}]},
    ]
    assert ask(input=items).prompts[0] == ChatPrompt(
        (
            Message("developer", "Be kind."),
            Message("user", (TextPart("What?"), ImagePart("https://example.com/a.png", "url", "low"))),
            Message(
                "assistant",
                (TextPart("I ask."),),
                tool_calls=(ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "g", "{}")),
            ),
            Message("tool", "5", tool_call_id="c1"),
            Message("tool", (TextPart("6"),), tool_call_id="c2"),
        )
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": None}]}, "tools[0].type"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"input": [{"type": ["a"]}]}, "input[0].type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ],
)
def test_refusals_name_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask(**fields)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"type": "web_search_call", "id": "w", "arguments": 1}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"truncation": "middle"}, "truncation"),
        ({"tools": [WEATHER, {"type": "web_search", "parameters": []}]}, "tools[1].type"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"include": ["web_search_call.results"]}, "include"),
        ({"include": ["lots"]}, "include[0]"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"prompt": {"id": "pmpt_1"}, "input": None}, "prompt"),
        ({"reasoning": {"summary": "lots"}}, "reasoning.summary"),
    ],
)
def test_what_only_a_server_of_the_api_may_know_is_refused_by_all_others(fields: dict[str, Any], param: str) -> None:
    request = ask(**fields)
    with pytest.raises(UnsupportedFeature) as refused:
        ignored_fields(request, ScriptedBackend("s"))
    assert refused.value.param == param
    # A server of chats is not sent the body.
    assert param in client("openai").ignored(request)
    assert RESPONSES.client(RESPONSES.dialects["openai"]).ignored(request) == ()


def test_a_choice_beside_other_tools_is_the_servers_business() -> None:
    tools = [WEATHER, {"type": "web_search"}]
    for choice in ("required", {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}):
        assert ask(tools=tools, tool_choice=choice).tool_choice == ToolChoice("auto")


def test_a_whole_answer() -> None:
    request = ask(tools=[WEATHER], instructions="Be brief.", metadata={"a": "b"})
    said = json.loads(server().encode(request, fold(EVENTS)).body)
    assert said["id"] == f"resp_{request.id}"
    assert (said["status"], said["error"], said["incomplete_details"]) == ("completed", None, None)
    assert [item["type"] for item in said["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert said["output"][1]["content"] == [
        {"type": "output_text", "annotations": [], "logprobs": [], "text": "Hello\u2028"}
    ]
    assert (said["output"][2]["call_id"], said["output"][2]["arguments"]) == ("call_1", '{"a":1}')
    assert said["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 29,
    }
    assert (said["tools"], said["instructions"], said["metadata"]) == ([WEATHER], "Be brief.", {"a": "b"})


def test_a_stream_ends_with_the_whole_response() -> None:
    request = ask(stream=True)
    writer = server().encoder(request)
    streamed = events(b"".join(writer.feed((event,)) for event in EVENTS))
    assert [event["type"].removeprefix("response.") for event in streamed] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert streamed[-1]["response"] == json.loads(server().encode(request, fold(EVENTS)).body)
    done = [event["item"] for event in streamed if event["type"] == "response.output_item.done"]
    assert streamed[-1]["response"]["output"] == done
    places = [("rs", 0), ("msg", 1), ("msg", 1), ("fc", 2), ("fc", 2), ("fc", 3)]
    assert [event["item_id"] for event in streamed if event["type"].endswith(".delta")] == [
        f"{prefix}_{request.id}_{place}" for prefix, place in places
    ]
    assert (
        "".join(event["delta"] for event in streamed if event["type"] == "response.output_text.delta") == "Hello\u2028"
    )


@pytest.mark.parametrize(
    ("reason", "why"), [(FinishReason.LENGTH, "max_output_tokens"), (FinishReason.CONTENT_FILTER, "content_filter")]
)
def test_a_truncated_response_is_incomplete(reason: FinishReason, why: str) -> None:
    call = ToolDelta(0, "c0", "weather", '{"ci')
    cut = (Started("m", 1), Delta(text="Hel"), Delta(tool_calls=(call,)), Finished(reason=reason), Usage(1, 1))
    request = ask(stream=True, tools=[WEATHER])
    streamed = events(server().encoder(request).feed(cut))
    last = streamed[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": why}
    assert [item["status"] for item in last["response"]["output"]] == ["completed", "incomplete"]
    done = [event["item"] for event in streamed if event["type"] == "response.output_item.done"]
    assert done == last["response"]["output"]
    assert last["response"] == json.loads(server().encode(request, fold(cut)).body)


def test_a_failed_stream_ends_with_response_failed() -> None:
    writer = server().encoder(ask(stream=True))
    data = writer.feed((Started("m", 1), Delta(text="Hel"))) + writer.fail(BackendFailed("Because."))
    last = events(data)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["message"] == "Because."


SCORES: Events = (
    Started("m", 9),
    Delta(text="He", tokens=(Token(1, "He", -0.25, top=(TopToken(1, "He", -0.25), TopToken(2, "Hi", -1.5))),)),
    Delta(tokens=(Token(7, "", -0.5, bytes=b"\xf0\x9f"),)),
    Delta(text="🙂", tokens=(Token(8, "🙂", -2.0, bytes=b"\x99\x82"),)),
    Delta(tokens=(Token(9, "", -0.5, bytes=b"\xf0"),)),
    Finished(reason=FinishReason.EOS, tokens=(Token(0, "</s>", -0.0625, special=True),)),
    Usage(9, 4),
)


def test_log_probabilities_whole_and_streamed() -> None:
    request = ask(stream=True, include=["message.output_text.logprobs"], top_logprobs=2)
    assert (request.logprobs, request.top_logprobs) == (True, 2)
    (part,) = json.loads(server().encode(request, fold(SCORES)).body)["output"][0]["content"]
    assert [entry["logprob"] for entry in part["logprobs"]] == [-0.25, -0.5, -2.0, -0.5]
    assert [top["token"] for top in part["logprobs"][0]["top_logprobs"]] == ["He", "Hi"]
    writer = server().encoder(request)
    streamed = events(b"".join(writer.feed((event,)) for event in SCORES))
    deltas = [event for event in streamed if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == part["logprobs"]
    (done,) = [event for event in streamed if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == part["logprobs"]
    assert streamed[-1]["response"] == json.loads(server().encode(request, fold(SCORES)).body)


def test_no_log_probabilities_without_include() -> None:
    request = ask(top_logprobs=2)
    assert (request.logprobs, request.top_logprobs) == (False, 0)
    assert json.loads(server().encode(request, fold(SCORES)).body)["top_logprobs"] == 2
    (part,) = json.loads(server().encode(request, fold(SCORES)).body)["output"][0]["content"]
    assert part["logprobs"] == []


class Shelf:
    """The records of one client, in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def get(self, id: str) -> bytes | None:
        return self.kept.get(id)

    def delete(self, id: str) -> bool:
        return self.kept.pop(id, None) is not None


def answered(shelf: Shelf, id: str, *, stream: bool = False, **fields: Any) -> tuple[Generate, dict[str, Any]]:
    """A request that was answered with `EVENTS` and stored; and its response."""
    body = json.dumps({"model": "m", "stream": stream} | fields).encode()
    request = server().decode(ROUTES["responses"], body, replace(call(), id=id, records=shelf))
    assert isinstance(request, Generate)
    if stream:
        writer = server().encoder(request)
        said = events(writer.feed(EVENTS))[-1]["response"]
        record = writer.record
    else:
        reply = server().encode(request, fold(EVENTS))
        said, record = json.loads(reply.body), reply.record
    if record is not None:
        shelf.kept[record.id] = record.data
    return request, said


def describe(shelf: Shelf, name: str, id: str, **query: str) -> Any:
    asked = replace(call(), path={"id": id}, records=shelf, query=query)
    if ROUTES[name].kind == "describe":
        return json.loads(server().describe(ROUTES[name], asked, b"").body)
    steps, result = server().steps(ROUTES[name], asked, b""), None
    try:
        while True:
            step = steps.send(result)
            assert isinstance(step, Get | Delete)
            result = shelf.get(step.id) if isinstance(step, Get) else shelf.delete(step.id)
    except StopIteration as end:
        return json.loads(end.value.body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_conversation_is_continued(stream: bool) -> None:
    shelf = Shelf()
    _, first = answered(shelf, "1", stream=stream, input="Hi", instructions="Be brief.")
    assert (first["id"], first["store"], first["previous_response_id"]) == ("resp_1", True, None)
    outputs = [{"type": "function_call_output", "call_id": call, "output": "5"} for call in ("call_1", "call_2")]
    request, second = answered(shelf, "2", stream=stream, input=outputs, previous_response_id="resp_1")
    assert (second["store"], second["previous_response_id"]) == (True, "resp_1")
    calls = (ToolCall("call_1", "f", '{"a":1}'), ToolCall("call_2", "g", "{}"))
    so_far = (
        Message("user", (TextPart("Hi"),)),
        Message("assistant", (TextPart("Hello\u2028"),), tool_calls=calls),
        Message("tool", "5", tool_call_id="call_1"),
        Message("tool", "5", tool_call_id="call_2"),
    )
    assert request.prompts == (ChatPrompt(so_far),)
    shelf.delete("resp_1")  # the record of the second response has the whole conversation
    third, _ = answered(shelf, "3", input="And?", previous_response_id="resp_2")
    (prompt,) = third.prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[:4] == so_far
    assert prompt.messages[-1] == Message("user", "And?")
    assert describe(shelf, "response", "resp_2") == second


def test_the_input_items_of_a_stored_response_are_listed() -> None:
    shelf = Shelf()
    answered(shelf, "1", input="Hi")
    answered(shelf, "2", input=[{"role": "user", "content": "And?"}], previous_response_id="resp_1")
    page = describe(shelf, "input_items", "resp_2", order="asc")
    kinds = [(item["type"], item.get("role")) for item in page["data"]]
    assert kinds == [
        ("message", "user"),
        ("reasoning", None),
        ("message", "assistant"),
        ("function_call", None),
        ("function_call", None),
        ("message", "user"),
    ]
    assert page["data"][0] == {
        "type": "message",
        "id": "msg_1_in0",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hi"}],
    }
    ids = [item["id"] for item in page["data"]]
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", ids[0], ids[-1], False)
    newest = describe(shelf, "input_items", "resp_2", limit="2")
    assert ([item["id"] for item in newest["data"]], newest["has_more"]) == (ids[:-3:-1], True)
    rest = describe(shelf, "input_items", "resp_2", limit="100", after=newest["last_id"])
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == (ids[-3::-1], False)
    assert describe(shelf, "input_items", "resp_2", after=ids[0])["data"] == []
    for query in ({"limit": "0"}, {"limit": "x"}, {"limit": "1" * 5000}, {"order": "up"}):
        with pytest.raises(InvalidRequest):
            describe(shelf, "input_items", "resp_2", **query)


def test_a_response_with_store_false_is_not_stored() -> None:
    shelf = Shelf()
    _, said = answered(shelf, "1", input="Hi", store=False)
    assert (said["store"], shelf.kept) == (False, {})
    request = ask(store=True)  # a gateway that stores nothing
    reply = server().encode(request, fold(EVENTS))
    assert (json.loads(reply.body)["store"], reply.record) == (False, None)


def test_responses_that_are_not_stored_are_not_found() -> None:
    shelf = Shelf()
    for name in ("response", "forget", "input_items", "cancel"):
        with pytest.raises(RouteNotFound, match="Response with id 'resp_9' not found"):
            describe(shelf, name, "resp_9")
    with pytest.raises(RouteNotFound, match="Response with id 'resp_9' not found"):
        server().describe(ROUTES["input_items"], replace(call(), path={"id": "resp_9"}), b"")
    with pytest.raises(InvalidRequest) as raised:
        answered(shelf, "1", input="Hi", previous_response_id="resp_9")
    assert (raised.value.param, raised.value.code) == ("previous_response_id", "previous_response_not_found")
    answered(shelf, "1", input="Hi")
    assert describe(shelf, "forget", "resp_1") == {"id": "resp_1", "object": "response", "deleted": True}
    assert shelf.kept == {}
    answered(shelf, "2", input="Hi")
    with pytest.raises(InvalidRequest, match="synchronous"):
        describe(shelf, "cancel", "resp_2")


def test_an_item_reference_is_resolved() -> None:
    shelf = Shelf()
    _, first = answered(shelf, "1", input="Hi")
    message, call_item = first["output"][1:3]
    said = [{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": message["id"]}]
    said += [{"type": "item_reference", "id": call_item["id"]}, {"role": "user", "content": "And?"}]
    request, _ = answered(shelf, "2", input=said)
    called = Message("assistant", (TextPart("Hello\u2028"),), tool_calls=(ToolCall("call_1", "f", '{"a":1}'),))
    assert request.prompts == (ChatPrompt((Message("user", "Hi"), called, Message("user", "And?"))),)
    kept = describe(shelf, "input_items", "resp_2", order="asc")["data"]
    assert kept[1:3] == [message, call_item]
    answered(shelf, "3", input=[{"type": "item_reference", "id": kept[0]["id"]}])


@pytest.mark.parametrize("id", ["msg_9_0", "msg_1_9", "odd", ""])
def test_an_unknown_item_reference_is_not_found(id: str) -> None:
    shelf = Shelf()
    answered(shelf, "1", input="Hi")
    with pytest.raises(RouteNotFound, match=f"Item with id '{id}' not found") as raised:
        answered(shelf, "2", input=[{"type": "item_reference", "id": id}])
    assert raised.value.param == "input"


@pytest.mark.parametrize(("choice", "tools"), [(None, 1), ("required", 1), ("none", 0)])
def test_the_tokens_of_an_input_are_counted(choice: str | None, tools: int) -> None:
    body = {"model": "m", "input": "Hi", "instructions": "Be brief.", "tools": [WEATHER], "tool_choice": choice}
    request = server().decode(ROUTES["input_tokens"], json.dumps(body).encode(), call())
    assert isinstance(request, Tokenize)
    assert request.prompt == ChatPrompt((Message("system", "Be brief."), Message("user", "Hi")))
    assert len(request.tools) == tools
    spans = tuple(TokenSpan(place, "x", place, place + 1) for place in range(7))
    said = server().encode_tokens(request, Tokens(spans, "x" * 7))
    assert json.loads(said.body) == {"object": "response.input_tokens", "input_tokens": 7}


KEYS = {
    "max_tool_calls": 3,
    "presence_penalty": 0.5,
    "frequency_penalty": -1.0,
    "prompt_cache_key": "key",
    "safety_identifier": "somebody",
    "truncation": "auto",
}


def test_a_response_repeats_its_request_with_every_required_key() -> None:
    plain = json.loads(server().encode(ask(tools=[{"type": "function", "name": "f"}]), fold(EVENTS)).body)
    assert {name: plain[name] for name in KEYS} == {
        "max_tool_calls": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "prompt_cache_key": None,
        "safety_identifier": None,
        "truncation": "disabled",
    }
    assert plain["tools"] == [{"type": "function", "name": "f", "parameters": None, "strict": None}]
    assert plain["completed_at"] == plain["created_at"]
    request = ask(**KEYS)
    assert {
        name: value for name, value in json.loads(server().encode(request, fold(EVENTS)).body).items() if name in KEYS
    } == KEYS
    assert (request.sampling.presence_penalty, request.sampling.frequency_penalty) == (0.5, -1.0)
    assert (request.safety_identifier, request.overflow) == ("somebody", "drop_turns")


def test_only_a_completed_response_has_a_time_of_completion() -> None:
    received = [
        event["response"] for event in events(server().encoder(ask(stream=True)).feed(EVENTS)) if "response" in event
    ]
    assert [response["completed_at"] for response in received] == [None, None, 1700000000]
    assert all(set(received[-1]) == set(response) for response in received)
    cut = (Started("m", 1), Finished(text="x", reason=FinishReason.LENGTH), Usage(1, 1))
    assert json.loads(server().encode(ask(), fold(cut)).body)["completed_at"] is None


@pytest.mark.parametrize("type", ["compaction", "compaction_trigger"])
def test_items_of_a_compacted_conversation_are_refused_by_name(type: str) -> None:
    """Those of other servers: opaque to all but the server that made them."""
    item = {"type": type, "id": "cmp_1", "encrypted_content": "x"}
    with pytest.raises(UnsupportedFeature, match=f"'{type}'") as refused:
        ignored_fields(ask(input=[item, {"role": "user", "content": "Hi"}]), ScriptedBackend("s"))
    assert refused.value.param == "input[0].type"


def test_reasoning_of_earlier_turns_is_named() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    request = ask(input=[{"role": "user", "content": "Hi"}, thought, {"role": "assistant", "content": "Yes."}])
    assert request.unknown == ("input[1]",)


def test_of_items_that_come_back_what_is_lost_is_named_once() -> None:
    cited = {"type": "output_text", "text": "Yes.", "annotations": [{"type": "url_citation"}], "logprobs": [{"x": 1}]}
    answered = {"type": "message", "role": "assistant", "status": "completed", "phase": "final_answer"}
    plain = answered | {"phase": None, "content": [cited | {"annotations": []}]}
    assert ask(input=[plain, {"role": "user", "content": "Hi"}]).unknown == ()
    request = ask(input=[plain, *(answered | {"content": [cited]} for _ in range(2))])
    assert request.unknown == ("input[1].phase", "input[1].content[0].annotations")


def test_an_unknown_retention_of_a_cached_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        ignored_fields(ask(input="Hi", prompt_cache_retention="lots"), ScriptedBackend("s"))
    assert refused.value.param == "prompt_cache_retention"
