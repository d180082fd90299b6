"""Answers of all kinds of compatible servers, decoded by the client codec."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.base import Reply
from adapters.fold import fold
from schemas.errors import (
    BackendFailed,
    Incomplete,
)
from schemas.ir import (
    Delta,
    Finished,
    FinishReason,
    Started,
    Token,
    ToolCall,
    ToolDelta,
    Usage,
)
from tests.adapters.openai.remote_scenes import COUNTED, STREAM, answer, choice, chunk, frames, read, scored, talk
from tests.adapters.openai.scenes import GOLDEN, client, events_of, reply

# --- whole answers ---------------------------------------------------------------------------------------------------


def test_a_whole_chat() -> None:
    assert client().decode(talk(), answer()) == (
        Started("m", 3),
        Finished(text="Hi", reason=FinishReason.EOS),
        Usage(3, 2),
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"finish_reason": "eos_token"}, {"reason": FinishReason.EOS}),
        ({"finish_reason": "EOS_TOKEN"}, {"reason": FinishReason.EOS}),
        ({"finish_reason": "end_turn"}, {"reason": FinishReason.EOS}),
        ({"finish_reason": "stop_sequence"}, {"reason": FinishReason.STOP_STRING}),
        ({"finish_reason": "length"}, {"reason": FinishReason.LENGTH}),
        ({"finish_reason": "content_filter"}, {"reason": FinishReason.CONTENT_FILTER}),
        ({"finish_reason": "tool_calls"}, {"reason": FinishReason.TOOL_CALL}),
        ({"stop_reason": "."}, {"reason": FinishReason.STOP_STRING, "stop": "."}),
        ({"stop_reason": 13}, {"reason": FinishReason.STOP_TOKEN}),
        ({"stop_reason": None}, {"reason": FinishReason.EOS}),
    ],
)
def test_finish_reasons(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert client().decode(talk(), answer(choice(**fields)))[1] == Finished(text="Hi", **expected)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": None, "refusal": "No."}, {"refusal": "No."}),
        ({"content": "a", "reasoning_content": "b"}, {"text": "a", "reasoning": "b"}),
        ({"content": "a", "reasoning": "b"}, {"text": "a", "reasoning": "b"}),
        (
            {
                "content": [
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}]},
                    {"type": "text", "text": "a"},
                ]
            },
            {"text": "a", "reasoning": "b"},
        ),
        (
            {
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"type": "function", "function": {"name": "g", "arguments": "[]"}},
                ],
            },
            {"tool_calls": (ToolDelta(0, "c", "f", "{}"), ToolDelta(1, "call_r1_0_1", "g", "[]"))},
        ),
    ],
)
def test_messages(message: dict[str, Any], expected: dict[str, Any]) -> None:
    events = client().decode(talk(), answer(choice(message=message)))
    reason = FinishReason.TOOL_CALL if "tool_calls" in expected else FinishReason.EOS
    assert events[1] == Finished(**expected, reason=reason)


def test_usage_with_and_without_details() -> None:
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    assert client().decode(talk(), answer(usage=usage))[-1] == Usage(3, 2, 1, 1)
    assert client().decode(talk(), answer(usage=None)) == (
        Started("m"),
        Finished(text="Hi", reason=FinishReason.EOS),
        Usage(0, 1),
    )


@pytest.mark.parametrize(
    "bad",
    [
        reply(b"<html>"),
        reply(b"\xff"),
        reply(b"[" * 100_000),
        reply([]),
        reply({}),
        answer(choice(index=1)),
        answer(choice(), choice()),
        answer(choice(), choice(index=1)),
        answer(choice(finish_reason="invalid flag")),
        answer(choice(finish_reason="abort")),
        answer(usage={"prompt_tokens": -1}),
    ],
)
def test_malformed_answers_are_failures(bad: Reply) -> None:
    with pytest.raises(BackendFailed) as caught:
        client().decode(talk(), bad)
    assert caught.value.code == "upstream_malformed"


def test_an_unfinished_answer_is_incomplete() -> None:
    with pytest.raises(Incomplete):
        client().decode(talk(), answer(choice(finish_reason=None)))


def test_the_finish_reason_with_which_mindie_reports_a_failure() -> None:
    with pytest.raises(BackendFailed):
        client("mindie-openai").decode(talk(), answer(choice(finish_reason="stop_sequence")))


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [True, False])
def test_a_stream(done: bool) -> None:
    assert read(chunk(role="assistant", content=""), chunk(content="Hi"), chunk("stop"), COUNTED, done=done) == (
        Started("m"),
        Delta(text="Hi"),
        Finished(reason=FinishReason.EOS),
        Usage(3, 2),
    )


def test_the_last_of_several_usages_counts() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    events = read(
        chunk(content="a", usage=usage), chunk(content="b", usage=usage | {"completion_tokens": 2}), chunk("stop")
    )
    assert events[0] == Started("m", 3)
    assert events[-1] == Usage(3, 2)


def test_a_stream_without_usage_is_counted_by_its_deltas() -> None:
    assert read(chunk(content="a"), chunk(content="b"), chunk("stop"))[-1] == Usage(0, 2)


def test_mindies_recorded_stream() -> None:
    data = (GOLDEN / "mindie-openai/document-3.txt").read_bytes()
    events = events_of(client("mindie-openai"), STREAM, data)
    assert events[0] == Started("baichuan")
    assert events[-2:] == (Finished(reason=FinishReason.LENGTH), Usage(0, 19))


def test_tgis_last_chunk_with_text_and_empty_finish_reasons() -> None:
    last = chunk("stop", content="b")
    assert read(chunk("", content="a"), last) == (
        Started("m"),
        Delta(text="a"),
        Finished(text="b", reason=FinishReason.EOS),
        Usage(0, 2),
    )


@pytest.mark.parametrize("index", [{}, {"index": 0}], ids=["no index", "always the same index"])
def test_another_id_and_name_are_another_call(index: dict[str, int]) -> None:
    """As Google's servers, and some versions of Ollama's, stream parallel calls."""

    def part(id: str, function: dict[str, str]) -> dict[str, Any]:
        return chunk(tool_calls=[{**index, "id": id, "function": function}])

    events = read(
        part("a", {"name": "f", "arguments": "{"}),
        part("a", {"name": "f", "arguments": "}"}),
        part("b", {"name": "g", "arguments": "["}),
        part("", {"arguments": "]"}),
        chunk("stop"),
    )
    assert fold(events).choices[0].tool_calls == (ToolCall("a", "f", "{}"), ToolCall("b", "g", "[]"))
    assert fold(events).choices[0].reason is FinishReason.TOOL_CALL


def test_parts_of_tool_calls() -> None:
    def piece(index: int | None, id: str | None = None, **function: Any) -> dict[str, Any]:
        return chunk(tool_calls=[{"index": index, "id": id, "function": function}])

    events = read(
        piece(0, "c", name="f", arguments=""),
        piece(0, "c", name="f", arguments="{"),
        piece(0, arguments="}"),
        piece(1, name="g", arguments="{}"),
        chunk("tool_calls"),
    )
    assert events[1:-1] == (
        Delta(tool_calls=(ToolDelta(0, "c", "f"),)),
        Delta(tool_calls=(ToolDelta(0, arguments="{"),)),
        Delta(tool_calls=(ToolDelta(0, arguments="}"),)),
        Delta(tool_calls=(ToolDelta(1, "call_r1_0_1", "g", "{}"),)),
        Finished(reason=FinishReason.TOOL_CALL),
    )


def test_a_character_split_over_two_chunks() -> None:
    def half(text: str, data: bytes) -> dict[str, Any]:
        found = chunk(content=text)
        found["choices"][0]["logprobs"] = {"content": [scored("\ufffd", data)]}
        return found

    events = read(
        half("", b"\xf0\x9f"), half("🙂", b"\x99\x82"), chunk("stop"), request=talk(stream=True, logprobs=True)
    )
    assert events[1:3] == (
        Delta(tokens=(Token(None, "", -1.0, bytes=b"\xf0\x9f"),)),
        Delta(text="🙂", tokens=(Token(None, "🙂", -1.0, bytes=b"\x99\x82"),)),
    )


def test_what_follows_the_end_is_ignored() -> None:
    data = frames(chunk("stop"), COUNTED) + b"data: rubbish\n\n"
    assert events_of(client(), STREAM, data)[-1] == Usage(3, 2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        frames(chunk(content="a"), done=False),
        frames(chunk(content="a"), done=True),
        frames(chunk(content="a"), COUNTED),
        frames(chunk("stop"))[:-40],
    ],
)
def test_streams_that_end_too_early_are_incomplete(data: bytes) -> None:
    with pytest.raises(Incomplete):
        events_of(client(), STREAM, data)


def test_a_stream_with_one_of_two_choices_is_incomplete() -> None:
    with pytest.raises(Incomplete):
        read(chunk("stop"), request=talk(stream=True, n=2))


@pytest.mark.parametrize(
    "data",
    [
        b"data: <html>\n\n",
        b"data: \xff\n\n",
        b'data: {"object":"ping"}\n\n',
        frames(chunk(index=1, content="a")),
        frames(chunk(index=-1, content="a")),
        frames(chunk(index=10**9, content="a")),
        frames(chunk("stop"), chunk(content="more")),
        frames(chunk("cancelled")),
        frames(chunk(tool_calls=[{"index": 10**9}])),
        b"data: " + b"a" * (1 << 20) + b"\n\n",
    ],
)
def test_malformed_streams_are_failures(data: bytes) -> None:
    with pytest.raises(BackendFailed) as caught:
        events_of(client(), STREAM, data)
    assert caught.value.code == "upstream_malformed"
