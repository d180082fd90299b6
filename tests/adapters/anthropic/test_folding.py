"""A stream accumulates to the blocks of the whole message."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import fold
from schemas.errors import BackendFailed
from schemas.ir import Delta, Event, Events, Finished, FinishReason, Started, ToolDelta, Usage
from tests.adapters.anthropic.test_server import SERVER, WEATHER, ask
from tests.adapters.laws import batches, streams

Json = dict[str, Any]


def accumulate(stream: bytes) -> Json:
    """The message as the SDKs accumulate it: blocks start, grow by deltas and stop, one after another."""
    message: Json = {}
    arguments = ""
    for frame in stream.decode().split("\n\n")[:-1]:
        event = json.loads(frame.partition("\ndata: ")[2])
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                arguments = ""
            case "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "input_json_delta":
                    arguments += delta["partial_json"]
                else:
                    name = delta["type"].removesuffix("_delta")
                    message["content"][-1][name] += delta[name]
            case "content_block_stop" if arguments:
                message["content"][-1]["input"] = json.loads(arguments)
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    return message


def with_arguments(events: Events) -> Events:
    """The same stream with tool calls whose arguments are a JSON object or empty."""

    def with_json(event: Event) -> Event:
        if not isinstance(event, Delta):
            return event
        calls = tuple(
            msgspec.structs.replace(call, arguments=" " if call.id is None else '{"city": "Zoë"}')
            for call in event.tool_calls
        )
        return msgspec.structs.replace(event, tool_calls=calls)

    return tuple(map(with_json, events))


@pytest.mark.slow
@given(
    data=st.data(),
    events=streams(tools=True, reasoning=True, reasons=tuple(FinishReason)).map(with_arguments),
    refusal=st.booleans(),
)
def test_streams(data: st.DataObject, events: Events, refusal: bool) -> None:
    if refusal:
        place = data.draw(st.integers(1, len(events) - 2))
        events = (*events[:place], Delta(refusal="No. "), *events[place:])
    request = ask(stream=True, tools=[WEATHER])
    writer = SERVER.encoder(request)
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    assert accumulate(stream) == json.loads(SERVER.encode(request, fold(events)).body)


def test_text_and_a_refusal_in_one_delta_are_both_written() -> None:
    events: Events = (
        Started("m", 1),
        Delta(text="Well. ", refusal="No."),
        Delta(tool_calls=(ToolDelta(0, "t0", "f"),)),
        Finished(reason=FinishReason.EOS),
        Usage(1, 4),
    )
    message = json.loads(SERVER.encode(ask(), fold(events)).body)
    assert message["stop_reason"] == "refusal"
    assert [block.get("text", block.get("input")) for block in message["content"]] == ["Well. No.", {}]
    assert accumulate(SERVER.encoder(ask(stream=True)).feed(events)) == message


@pytest.mark.parametrize("arguments", ['{"city": "Par', "{", '{"city": "Paris"'])
def test_a_truncated_tool_call_has_no_input(arguments: str) -> None:
    def answer(reason: FinishReason) -> Json:
        call = Delta(tool_calls=(ToolDelta(0, "t0", "f", arguments),))
        events: Events = (Started("m", 1), call, Finished(reason=reason), Usage(1, 4))
        return json.loads(SERVER.encode(ask(), fold(events)).body)

    message = answer(FinishReason.LENGTH)
    assert message["stop_reason"] == "max_tokens"
    assert message["content"] == [{"type": "tool_use", "id": "t0", "name": "f", "input": {}}]
    with pytest.raises(BackendFailed):
        answer(FinishReason.EOS)
