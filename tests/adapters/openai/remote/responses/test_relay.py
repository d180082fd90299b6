"""What only the Responses API has passes between a client and a server of it, both ways."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Record, Reply
from adapters.fold import fold
from adapters.openai import RESPONSES
from adapters.openai.responses.stored import make_record, places_of
from adapters.openai.responses.summary import write_summary
from adapters.optional import DetachableEncoder
from schemas.errors import BackendFailed, GatewayError, Incomplete
from schemas.ir import Events, FinishReason, Generate, Relayed, Started, ToolCall, Usage
from tests.adapters.laws import splits
from tests.adapters.openai.remote.responses.scenes import (
    EVERYTHING,
    NEW,
    REASONING,
    SEARCH,
    Json,
    cut_off,
    failed,
    message,
    response,
    sse,
    stream,
)
from tests.adapters.openai.responses.test_decode import ask, events
from tests.adapters.openai.scenes import ROUTES, call, server
from tests.fuzz.test_decoders import mutated

CLIENT = RESPONSES.client(RESPONSES.dialects["openai"])
ID = "resp_68b1"
OWN = {"id": "resp_r1", "previous_response_id": None, "store": False, "conversation": None, "background": False}


class Stored(dict[str, bytes]):
    """Records by their ids."""

    def keep(self, record: Record) -> None:
        assert record.data is not None
        self[record.id] = record.data
        for each in record.also:
            self.keep(each)

    def delete(self, id: str) -> bool:
        return self.pop(id, None) is not None


def stored(*output: Json, before: tuple[Json, ...] = ()) -> Stored:
    records = Stored()
    body = json.dumps(response(*output, id=ID)).encode()
    record = make_record(ID, body, json.dumps(before).encode())
    records.keep(msgspec.structs.replace(record, also=places_of(ID, list(output))))
    return records


def asked(records: Stored | None = None, **fields: Any) -> Generate:
    body = {"model": "m", "input": "Hi"} | fields
    there = msgspec.structs.replace(call("r1"), records=records)
    request = server().decode(ROUTES["responses"], json.dumps(body).encode(), there)
    assert isinstance(request, Generate)
    return request


def sent(request: Generate) -> Json:
    outbound = CLIENT.encode(request)
    assert outbound.path == "/responses"
    body: Json = json.loads(outbound.body)
    return body


# --- requests -------------------------------------------------------------------------------------------------------


def test_a_body_passes_as_it_came() -> None:
    body = {
        "model": "m",
        "input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, NEW],
        "tools": [
            {"type": "web_search", "filters": {"allowed_domains": ["a.example"]}},
            {
                "type": "custom",
                "name": "apply_patch",
                "format": {"type": "grammar", "syntax": "lark", "definition": "s"},
            },
            {"type": "mcp", "server_label": "l", "server_url": "https://a.example", "require_approval": "never"},
            {"type": "local_shell"},
        ],
        "tool_choice": {"type": "custom", "name": "apply_patch"},
        "include": ["reasoning.encrypted_content", "web_search_call.action.sources", "new.thing"],
        "reasoning": {"effort": "lots", "summary": "new", "deep": [1.50]},
        "text": {"verbosity": "low", "format": {"type": "lark"}},
        "prompt": {"id": "pmpt_1"},
        "context_management": [{"type": "compaction", "compact_threshold": 9}],
        "stream": True,
        "store": False,
        "new": {"a": 2.50},
    }
    assert sent(asked(**body)) == body
    raw = json.dumps(body).replace("2.5", "2.50").encode()
    request = server().decode(ROUTES["responses"], raw, call())
    assert isinstance(request, Generate)
    assert b'"new":{"a": 2.50}' in CLIENT.encode(request).body


@pytest.mark.parametrize(
    ("fields", "included"),
    [
        ({}, None),
        ({"reasoning": {"effort": "low"}}, ["reasoning.encrypted_content"]),
        ({"reasoning": {}, "include": ["reasoning.encrypted_content"]}, ["reasoning.encrypted_content"]),
        ({"reasoning": {"effort": "low"}, "store": False}, None),
    ],
)
def test_reasoning_outlasts_its_turn(fields: Json, included: list[str] | None) -> None:
    assert sent(asked(**fields)).get("include") == included


def test_the_whole_conversation_is_sent() -> None:
    before = ({"type": "message", "id": "msg_r0_in0", "status": "completed", "role": "user", "content": "Find it."},)
    lost, other = {"type": "reasoning", "id": "rs_1", "summary": []}, {"type": "reasoning", "id": "rs_r0_1"}
    records = stored(REASONING, lost, other | {"content": [{}]}, SEARCH, message("Paris"), before=before)
    request = asked(records, previous_response_id=ID, background=True, stream=True)
    # Content without a type, and a search.
    assert [part.param for part in request.unread] == ["previous_response_id", "previous_response_id.type"]
    body = sent(request)
    first = {name: value for name, value in before[0].items() if name != "id"}
    assert body == {
        "model": "m",
        "input": [first, REASONING, SEARCH, message("Paris"), {"role": "user", "content": "Hi"}],
        "stream": True,
        "store": False,
    }


def test_reasoning_that_no_server_has_is_named() -> None:
    lost = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    request = asked(input=[REASONING, lost, {"role": "user", "content": "Hi"}])
    assert CLIENT.ignored(request) == ("input[1]",)
    assert sent(request)["input"] == [REASONING, {"role": "user", "content": "Hi"}]


def test_a_reference_is_resolved_wherever_its_item_was_made() -> None:
    items = [{"type": "item_reference", "id": "ws_68a1"}, {"role": "user", "content": "More"}]
    request = asked(stored(SEARCH), input=items, store=False)
    assert sent(request)["input"] == [SEARCH, items[1]]
    assert [part.param for part in request.unread] == ["input[0].type"]


def test_a_reference_to_what_another_gateway_made_is_resolved() -> None:
    search = SEARCH | {"id": "ws_r0_1"}
    request = asked(stored(search), input=[{"type": "item_reference", "id": "ws_r0_1"}])
    assert sent(request)["input"] == [{name: value for name, value in search.items() if name != "id"}]


def test_a_summary_that_was_made_here_is_a_message_elsewhere() -> None:
    compaction = {"type": "compaction", "id": "cmp_r0", "encrypted_content": write_summary("We met.")}
    theirs = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}
    assert sent(asked(input=[compaction, theirs]))["input"] == [
        {"role": "assistant", "content": "Summary of the conversation so far:\n\nWe met."},
        theirs,
    ]


# --- answers --------------------------------------------------------------------------------------------------------


def own(event: Json, **fields: Any) -> Json:
    """A remote's event as the client gets it."""
    return event | ({"response": event["response"] | OWN | fields} if "response" in event else {})


BEFORE = ({"type": "codex.rate_limits", "limits": {"a": 1.5}},)
NEWS = {"type": "response.new.delta", "delta": {"any": 1}, "output_index": 9}


@given(data=st.data())
def test_a_stream_passes_as_it_came(data: st.DataObject) -> None:
    request = asked(stream=True, store=False)
    theirs = stream(*EVERYTHING, before=BEFORE)
    theirs.insert(5, NEWS)
    theirs = [event | {"sequence_number": number} for number, event in enumerate(theirs)]
    reader, writer = CLIENT.decoder(request), server().encoder(request)
    read: Events = ()
    written = b""
    for piece in data.draw(splits(sse(theirs))):
        if found := reader.feed(piece):
            read += found
            written += writer.feed(found)
    assert reader.close() == ()
    assert events(written) == [own(event) for event in theirs]
    seen = tuple(event for event in read if not isinstance(event, Relayed))
    [choice] = fold(seen).choices
    assert (choice.text, choice.reason, choice.tool_calls) == (
        "Paris",
        FinishReason.TOOL_CALL,
        (ToolCall("call_f", "f", '{"a":1}'),),
    )
    assert seen[-1] == Usage(30, 12, 8, 5)


def test_a_whole_answer_passes_as_it_came_and_is_stored() -> None:
    request = asked(Stored())
    theirs = response(*EVERYTHING)
    reply = server().encode(request, fold(CLIENT.decode(request, Reply(json.dumps(theirs).encode()))))
    assert json.loads(reply.body) == theirs | OWN | {"store": True}
    records = Stored()
    assert reply.record is not None
    records.keep(reply.record)
    again = asked(records, previous_response_id="resp_r1", input=[{"type": "item_reference", "id": NEW["id"]}])
    first = {
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hi"}],
    }
    assert sent(again)["input"] == [first, *EVERYTHING, NEW]


def test_the_end_of_a_stream_is_stored() -> None:
    request = asked(Stored(), stream=True)
    writer: Any = server().encoder(request)
    assert isinstance(writer, DetachableEncoder)
    theirs = stream(message("Pa"), end=cut_off("max_output_tokens", message("Pa", status="incomplete")))
    *rest, last = [sse([event]) for event in theirs]
    reader = CLIENT.decoder(request)
    for data in rest:
        writer.feed(reader.feed(data))
        assert writer.record is None
    said = events_of(writer.feed(reader.feed(last)))[-1]["response"]
    assert (said["status"], said["store"]) == ("incomplete", True)
    assert writer.record is not None
    assert json.loads(writer.record.data)["response"] == said


def events_of(data: bytes) -> list[Json]:
    return [json.loads(block.split("\n")[1].removeprefix("data: ")) for block in data.decode().split("\n\n")[:-1]]


@pytest.mark.parametrize("lacking", [{"output": None}, {"status": None}, {"output": None, "usage": None}])
def test_an_answer_that_lacks_fields_is_stored_as_it_came(lacking: Json) -> None:
    end = {"type": "response.completed", "response": response(message("Paris"), **lacking)}
    request = asked(Stored(), stream=True)
    writer: Any = server().encoder(request)
    said = events_of(writer.feed(CLIENT.decoder(request).feed(sse(stream(message("Paris"), end=end)))))
    assert said[-1]["response"] == end["response"] | OWN | {"store": True}
    records = Stored()
    records.keep(writer.record)
    again = sent(asked(records, previous_response_id="resp_r1"))["input"]
    assert again[1:-1] == (end["response"]["output"] or [])


def test_events_of_a_response_in_the_background_go_on_from_its_begin() -> None:
    request = asked(Stored(), stream=True, background=True)
    writer: Any = server().encoder(request)
    opening = writer.open()
    theirs = stream(message("Paris"))
    said = events(opening.events + writer.feed(CLIENT.decoder(request).feed(sse(theirs))))
    assert [event["type"] for event in said[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["type"] for event in said[3:]] == [event["type"] for event in theirs[2:]]
    assert {event["response"]["id"] for event in said if "response" in event} == {"resp_r1"}
    assert said[-1]["response"]["background"]


@pytest.mark.parametrize("end", [failed("server_error", "secret"), None])
def test_a_failure_is_never_an_end(end: Json | None) -> None:
    request = asked(stream=True, store=False)
    theirs = stream(SEARCH, message("Paris"), end=end)
    reader, writer = CLIENT.decoder(request), server().encoder(request)
    error: GatewayError | None = None
    try:
        for event in theirs if end else theirs[:-1]:
            if found := reader.feed(sse([event])):
                writer.feed(found)
        reader.close()
    except GatewayError as raised:
        error = raised
    assert isinstance(error, BackendFailed if end else Incomplete)
    [last] = events_of(writer.fail(error))
    assert (last["type"], last["response"]["id"]) == ("response.failed", "resp_r1")
    assert (last["response"]["status"], last["response"]["error"]["code"]) == ("failed", "server_error")
    assert last["response"]["output"] == [SEARCH, message("Paris")]
    assert "secret" not in json.dumps(last)


def test_line_breaks_and_names_of_a_remote_stay_inside_their_event() -> None:
    request = asked(stream=True, store=False)
    reader, writer = CLIENT.decoder(request), server().encoder(request)
    begun = json.dumps(stream()[0], indent=1).replace("\n", "\ndata: ")
    odd = json.dumps({"type": "a\nevent: b", "text": "\u2028\r\n"})
    written = writer.feed(reader.feed(f"data: {begun}\n\ndata: {odd}\n\n".encode()))
    assert written.count(b"\n\n") == 2
    assert [line.split(b":")[0] for line in written.split(b"\n") if line] == [b"event", b"data"] * 2
    assert events_of(written)[1] == json.loads(odd) | {"sequence_number": 1}


def test_a_client_of_another_protocol_gets_no_relayed_events() -> None:
    plain = msgspec.structs.replace(ask(stream=True), origin=None)
    read = CLIENT.decoder(plain).feed(sse(stream(*EVERYTHING, before=BEFORE)))
    assert isinstance(read[0], Started)
    assert not [event for event in read if isinstance(event, Relayed)]


@st.composite
def odd_streams(draw: st.DrawFn) -> list[Json]:
    """A stream in which a server says something else in one place."""
    theirs = stream(*EVERYTHING)
    place = draw(st.integers(0, len(theirs) - 1))
    return [*theirs[:place], mutated(draw, theirs[place]), *theirs[place + 1 :]]


@given(theirs=odd_streams(), relayed=st.booleans())
def test_whatever_a_server_sends_is_passed_on_or_a_failure_of_it(theirs: list[Any], relayed: bool) -> None:
    request = asked(Stored(), stream=True)
    reader = CLIENT.decoder(request if relayed else msgspec.structs.replace(request, origin=None))
    writer = server().encoder(request)
    error: GatewayError | None = None
    for event in theirs:
        try:
            found = reader.feed(f"data: {json.dumps(event)}\n\n".encode())
        except GatewayError as raised:
            error = raised
            break
        if found:
            writer.feed(found)
    if error is not None:
        assert events_of(writer.fail(error))[0]["type"] == "response.failed"


@given(data=st.data())
def test_whatever_a_server_answers_is_passed_on_or_a_failure_of_it(data: st.DataObject) -> None:
    request = asked(Stored())
    body = json.dumps(mutated(data.draw, response(*EVERYTHING))).encode()
    with suppress(GatewayError):
        server().encode(request, fold(CLIENT.decode(request, Reply(body))))
