"""A stream of typed events accumulates to the whole response, which is also in its last event."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import fold
from schemas.errors import BackendFailed
from schemas.ir import Delta, Events, Finished, FinishReason, Started, ToolDelta, Usage
from tests.adapters.laws import batches, streams
from tests.adapters.openai.responses.test_decode import WEATHER, ask, events
from tests.adapters.openai.scenes import server

Json = dict[str, Any]


def accumulate(received: list[Json]) -> Json:
    """The response as the SDKs accumulate it: items are added, parts grow by deltas, and "done" events repeat them."""
    answer: Json = {}
    output: list[Json] = []
    for event in received:
        kind = event["type"].removeprefix("response.")
        if "response" in event:
            answer = event["response"]
        elif kind == "output_item.added":
            assert event["output_index"] == len(output)
            output.append(event["item"])
        elif kind == "content_part.added":
            output[-1]["content"].append(event["part"])
        elif kind.endswith(".delta"):
            _grow(output[event["output_index"]], kind, event)
        elif kind == "content_part.done":
            assert output[-1]["content"][-1] == event["part"]
        elif kind == "output_item.done":
            output[-1]["status"] = event["item"]["status"]
            assert output[-1] == event["item"]
    return answer | {"output": output}


def _grow(item: Json, kind: str, event: Json) -> None:
    if kind == "function_call_arguments.delta":
        item["arguments"] += event["delta"]
    else:
        item["content"][-1]["refusal" if kind == "refusal.delta" else "text"] += event["delta"]
        if "logprobs" in event:
            item["content"][-1]["logprobs"] += event["logprobs"]


answers = streams(tools=True, reasoning=True, with_logprobs=True, tops=2, end_token=True, reasons=tuple(FinishReason))


@pytest.mark.parametrize("scored", [{}, {"include": ["message.output_text.logprobs"], "top_logprobs": 1}])
@given(data=st.data(), stream=answers, refused=st.booleans())
def test_streams(scored: Json, data: st.DataObject, stream: Events, refused: bool) -> None:
    if refused:
        place = data.draw(st.integers(1, len(stream) - 2))
        stream = (*stream[:place], Delta(refusal="No. "), *stream[place:])
    request = ask(stream=True, tools=[WEATHER], **scored)
    writer = server().encoder(request)
    received = events(b"".join(writer.feed(batch) for batch in data.draw(batches(stream))))
    whole = json.loads(server().encode(request, fold(stream)).body)
    assert received[-1]["response"] == whole
    assert accumulate(received) == whole


def test_text_between_tool_calls_comes_after_all_of_them() -> None:
    stream: Events = (
        Started("m", 1),
        Delta(tool_calls=(ToolDelta(0, "c0", "f", "{"),)),
        Delta(text="One "),
        Delta(tool_calls=(ToolDelta(0, arguments="}"), ToolDelta(1, "c1", "f", "{}"))),
        Finished(text="more.", reason=FinishReason.EOS),
        Usage(1, 9),
    )
    request = ask(stream=True, tools=[WEATHER])
    last = events(server().encoder(request).feed(stream))[-1]["response"]
    assert [item["type"] for item in last["output"]] == ["function_call", "function_call", "message"]
    assert last["output"][0]["arguments"] == "{}"
    assert last["output"][2]["content"][0]["text"] == "One more."
    assert last == json.loads(server().encode(request, fold(stream)).body)


def test_interleaved_tool_calls_are_a_failure() -> None:
    writer = server().encoder(ask(stream=True, tools=[WEATHER]))
    writer.feed((Started("m", 1), Delta(tool_calls=(ToolDelta(0, "c0", "f"), ToolDelta(1, "c1", "f")))))
    with pytest.raises(BackendFailed, match="entangled"):
        writer.feed((Delta(tool_calls=(ToolDelta(0, arguments="{}"),)),))
