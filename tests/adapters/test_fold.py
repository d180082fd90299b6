"""The fold: streams to complete answers, and back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import Fold, blocks, fold, unfold
from adapters.openai import ADAPTER as OPENAI
from schemas.completion import Choice, Completion, Timings
from schemas.errors import Incomplete
from schemas.ir import (
    ChatPrompt,
    Delta,
    Events,
    Finished,
    FinishReason,
    Generate,
    Message,
    Started,
    Token,
    ToolCall,
    ToolDelta,
    Usage,
)
from tests.adapters.laws import batches, canonical, streams

PROMPT = ((Token(1, "Hi"), Token(2, "!", -0.5)),)
STREAM: Events = (
    Started("m", 2, PROMPT),
    Delta(1, "b", (Token(5, "b"),)),
    Delta(0, "a", (Token(4, "a", -0.5),), reasoning="hm"),
    Delta(0, tool_calls=(ToolDelta(1, "call_1", "g", "{"), ToolDelta(0, "call_0", "f"))),
    Delta(0, tool_calls=(ToolDelta(1, arguments="}"),), reasoning="!"),
    Delta(1, refusal="no"),
    Finished(1, "d", (Token(7, "d"), Token(2, "</s>", special=True)), reason=FinishReason.EOS, generated=3, seed=9),
    Finished(0, "c", (Token(6, "c"),), reason=FinishReason.STOP_STRING, generated=2, stop="c"),
    Usage(2, 5, cached_tokens=1),
)


def test_a_stream_folds_to_the_complete_answer() -> None:
    assert fold(STREAM) == Completion(
        "m",
        (
            Choice(
                index=0,
                reason=FinishReason.STOP_STRING,
                text="ac",
                tokens=(Token(4, "a", -0.5), Token(6, "c")),
                reasoning="hm!",
                tool_calls=(ToolCall("call_0", "f", "{}"), ToolCall("call_1", "g", "{}")),
                generated=2,
                stop="c",
                order=(("reasoning", 2), ("text", 1), ("calls", 0), ("reasoning", 1), ("text", 1)),
            ),
            Choice(
                index=1,
                reason=FinishReason.EOS,
                text="bd",
                tokens=(Token(5, "b"), Token(7, "d"), Token(2, "</s>", special=True)),
                refusal="no",
                generated=3,
                seed=9,
                order=(("text", 1), ("refusal", 2), ("text", 1)),
            ),
        ),
        Usage(2, 5, cached_tokens=1),
        PROMPT,
    )


def test_blocks_are_in_the_order_of_the_stream() -> None:
    first, second = fold(STREAM).choices
    calls = [ToolCall("call_0", "f", "{}"), ToolCall("call_1", "g", "{}")]
    assert [*blocks(first)] == [("reasoning", "hm"), ("text", "a"), *calls, ("reasoning", "!"), ("text", "c")]
    assert [*blocks(second)] == [("text", "b"), ("refusal", "no"), ("text", "d")]
    usual = msgspec.structs.replace(first, order=())
    assert [*blocks(usual)] == [("reasoning", "hm!"), ("text", "ac"), *calls]


REPEATED_IDS: Events = (
    Started("m"),
    Delta(tool_calls=(ToolDelta(0, "call_a", "f", "{"), ToolDelta(1, "call_x", "g"))),
    Delta(tool_calls=(ToolDelta(0, "call_b", arguments='"a":'), ToolDelta(1, "call_x", "g"))),
    Delta(tool_calls=(ToolDelta(0, "", "h", "1}"), ToolDelta(1, arguments="{}"))),
    Finished(reason=FinishReason.TOOL_CALL),
    Usage(1, 3),
)


def test_the_last_id_and_name_of_a_tool_call_win() -> None:
    [choice] = fold(REPEATED_IDS).choices
    assert choice.tool_calls == (ToolCall("call_b", "h", '{"a":1}'), ToolCall("call_x", "g", "{}"))


def test_a_streamed_tool_call_equals_the_non_streamed_one_when_ids_repeat() -> None:
    """A client keeps the last id and name that it has read of a call and joins the arguments."""
    server = OPENAI.server(OPENAI.dialects["openai"])
    request = Generate(id="1", model="m", prompts=(ChatPrompt((Message("user", "Hi"),)),))
    streamed: dict[int, dict[str, str]] = {}
    for line in server.encoder(request).feed(REPEATED_IDS).split(b"\n\n"):
        if not line.startswith(b"data: {"):
            continue
        for choice in msgspec.json.decode(line.removeprefix(b"data: "))["choices"]:
            for piece in choice["delta"].get("tool_calls", ()):
                call = streamed.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
                call["id"] = piece.get("id") or call["id"]
                call["name"] = piece["function"].get("name") or call["name"]
                call["arguments"] += piece["function"]["arguments"]
    [choice] = msgspec.json.decode(server.encode(request, fold(REPEATED_IDS)).body)["choices"]
    whole = [
        {"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in choice["message"]["tool_calls"]
    ]
    assert [streamed[index] for index in sorted(streamed)] == whole


@pytest.mark.parametrize("length", range(len(STREAM)))
def test_a_stream_that_is_cut_off_is_incomplete(length: int) -> None:
    collected = Fold()
    collected.feed(STREAM[:length])
    assert not collected.done
    with pytest.raises(Incomplete):
        collected.completion()


@pytest.mark.parametrize("missing", [0, 6, 7, 8])
def test_a_stream_without_one_of_its_events_is_incomplete(missing: int) -> None:
    with pytest.raises(Incomplete):
        fold(STREAM[:missing] + STREAM[missing + 1 :])


@given(st.data(), streams(choices=3, tools=True, reasoning=True, with_logprobs=True, tops=1, end_token=True))
def test_batches_do_not_matter(draw: st.DataObject, events: Events) -> None:
    collected = Fold()
    for batch in draw.draw(batches(events)):
        assert not collected.done
        collected.feed(batch)
    assert collected.done
    assert collected.completion() == fold(events)


@given(streams(choices=3, tools=True, reasoning=True, with_logprobs=True, tops=1, end_token=True))
def test_unfold_is_the_inverse(events: Events) -> None:
    answer = canonical(events)
    assert fold(unfold(answer)) == answer
    assert len(unfold(answer)) == 2 + len(answer.choices)


@given(streams(choices=3))
def test_texts_and_tokens_agree(events: Events) -> None:
    for choice in fold(events).choices:
        assert choice.text == "".join(token.text for token in choice.tokens if not token.special)


def test_timings_are_not_part_of_a_stream() -> None:
    answer = canonical(STREAM)
    assert answer.timings is None
    assert fold(unfold(msgspec.structs.replace(answer, timings=Timings(0.1, 0.2)))) == answer
