"""Answers as OpenAI sends them, read for clients that know neither its tools nor its items."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.base import Reply
from adapters.fold import fold
from adapters.openai import RESPONSES
from schemas.completion import Choice, Completion
from schemas.errors import (
    BackendFailed,
    BackendUnavailable,
    ContextLengthExceeded,
    GatewayError,
    Incomplete,
    InvalidRequest,
    Overloaded,
)
from schemas.ir import Delta, Events, FinishReason, Started, ToolCall, Usage
from tests.adapters.laws import asked
from tests.adapters.openai.remote.responses.scenes import (
    EVERYTHING,
    FUNCTION,
    NEW,
    REFUSAL,
    SEARCHED,
    Json,
    cut_off,
    failed,
    message,
    response,
    sse,
    stream,
)

CLIENT = RESPONSES.client(RESPONSES.dialects["openai"])
THOUGHT = "**Looking**\n\nFound it."


def read(events: list[Json]) -> Events:
    reader = CLIENT.decoder(asked(stream=True))
    return reader.feed(sse(events)) + reader.close()


def both(*output: Json) -> Completion:
    """The answer with these items, which is the same streamed and whole."""
    streamed = fold(read(stream(*output)))
    whole = fold(CLIENT.decode(asked(), Reply(json.dumps(response(*output)).encode())))
    assert streamed == whole
    return streamed


def test_everything() -> None:
    answer = both(*EVERYTHING)
    assert (answer.model, answer.usage) == ("gpt-5-2026", Usage(30, 12, 8, 5))
    assert answer.choices == (
        Choice(
            0,
            FinishReason.TOOL_CALL,
            "Paris",
            reasoning=THOUGHT,
            tool_calls=(ToolCall("call_f", "f", '{"a":1}'),),
            generated=12,
        ),
    )


@pytest.mark.parametrize(
    ("output", "reason", "text", "refusal"),
    [
        ((REFUSAL,), FinishReason.EOS, "", "I cannot."),
        ((), FinishReason.EOS, "", ""),
        ((NEW,), FinishReason.EOS, "", ""),
        (SEARCHED, FinishReason.EOS, "Paris", ""),
    ],
)
def test_ends(output: tuple[Json, ...], reason: FinishReason, text: str, refusal: str) -> None:
    [choice] = both(*output).choices
    assert (choice.reason, choice.text, choice.refusal) == (reason, text, refusal)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("max_output_tokens", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("anything_else", FinishReason.LENGTH),
    ],
)
def test_incomplete(word: str, reason: FinishReason) -> None:
    end = cut_off(word, message("Pa", status="incomplete"))
    streamed = fold(read(stream(message("Pa", status="incomplete"), end=end)))
    assert streamed == fold(CLIENT.decode(asked(), Reply(json.dumps(end["response"]).encode())))
    assert (streamed.choices[0].reason, streamed.choices[0].text) == (reason, "Pa")


FAILURES: list[tuple[Json, type[GatewayError]]] = [
    (failed("server_error", "secret"), BackendFailed),
    (failed("rate_limit_exceeded", "slow down"), Overloaded),
    (failed("invalid_prompt", "flagged"), InvalidRequest),
    (failed("context_length_exceeded", "Your input exceeds"), ContextLengthExceeded),
    ({"type": "error", "code": "server_is_overloaded", "message": "x", "param": None}, BackendUnavailable),
    ({"type": "error", "error": {"type": "server_error", "code": None, "message": "secret"}}, BackendFailed),
    ({"type": "response.completed", "response": response(status="cancelled")}, BackendFailed),
]


@pytest.mark.parametrize(("end", "error"), FAILURES)
def test_failures(end: Json, error: type[GatewayError]) -> None:
    reader = CLIENT.decoder(asked(stream=True))
    with pytest.raises(error) as raised:
        reader.feed(sse(stream(message("Paris"), end=end)))
    assert "secret" not in raised.value.message
    assert reader.before[0] == Started("gpt-5-2026")
    assert reader.before[-1] == Delta(text="s")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (response(status="failed", error={"code": "server_error", "message": "secret"}), BackendFailed),
        (response(status="in_progress"), Incomplete),
        (response(status="cancelled"), Incomplete),
        ({}, Incomplete),
        ([], BackendFailed),
        (response({"type": "message", "content": 5}), BackendFailed),
    ],
)
def test_whole_answers_that_are_none(answer: Any, error: type[GatewayError]) -> None:
    with pytest.raises(error) as raised:
        CLIENT.decode(asked(), Reply(json.dumps(answer).encode()))
    assert "secret" not in raised.value.message


def test_what_comes_before_the_answer_is_none_of_it() -> None:
    before = ({"type": "codex.rate_limits", "rate_limits": {}}, {"type": "keepalive"})
    assert read(stream(message("Paris"), before=before)) == read(stream(message("Paris")))
    with pytest.raises(BackendFailed):
        read([{"type": "response.output_text.delta", "output_index": 0, "delta": "x"}])


@pytest.mark.parametrize("index", [1, 5])
def test_a_piece_of_no_call_is_a_fault(index: int) -> None:
    events = stream(message("Paris"), FUNCTION)
    # After the message was announced, and before the call is.
    events.insert(4, {"type": "response.function_call_arguments.delta", "output_index": index, "delta": "{"})
    with pytest.raises(BackendFailed):
        read(events)
    with pytest.raises(BackendFailed):
        read([*stream(FUNCTION)[:3], *stream(FUNCTION)[2:]])


@pytest.mark.parametrize("kept", ["output_item.done", "completed"])
def test_servers_that_do_not_stream_all_items(kept: str) -> None:
    everything = stream(*EVERYTHING)
    sent = [each for each in everything if each["type"].removeprefix("response.") in ("created", kept, "completed")]
    assert fold(read(sent)) == fold(read(everything))


def test_a_server_that_announces_no_message() -> None:
    events = [each for each in stream(message("Paris")) if not each["type"].startswith("response.output_item")]
    assert fold(read(events)) == fold(read(stream(message("Paris"))))


def test_a_server_without_counts() -> None:
    end = {"type": "response.completed", "response": response(usage=None)}
    assert fold(read(stream(message("Paris"), end=end))).usage == Usage(0, 5)
