"""Answers, streamed or not, of backends that report all, some or no tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.dialect import with_options
from adapters.fold import fold
from adapters.triton import ADAPTER
from schemas.errors import BackendFailed, Overloaded
from schemas.ir import Delta, Events, Finished, FinishReason, Generate, Started, Token, Usage
from tests.adapters.triton.cases import ANSWER, ROUTES, SERVERS, call, decode


def asked(**body: Any) -> Generate:
    return decode(json.dumps({"text_input": "x"} | body), "generate_stream")


def frames(request: Generate, events: Events, dialect: str = "triton") -> list[dict[str, Any]]:
    return parsed(SERVERS[dialect].encoder(request).feed(events))


def parsed(data: bytes) -> list[dict[str, Any]]:
    events = data.decode().split("\n\n")
    assert events.pop() == ""
    return [json.loads(event.removeprefix("data:")) for event in events]


COUNTS = {"return_num_input_tokens": True, "return_num_output_tokens": True, "return_finish_reason": True}


def test_batches_do_not_matter() -> None:
    one, many = SERVERS["triton"].encoder(asked(**COUNTS)), SERVERS["triton"].encoder(asked(**COUNTS))
    assert one.feed(ANSWER) == b"".join(many.feed((event,)) for event in ANSWER)


def test_the_last_response_waits_for_usage() -> None:
    encoder = SERVERS["triton"].encoder(asked())
    assert b"Hello" in encoder.feed(ANSWER[:2])
    assert encoder.feed(ANSWER[3:4]) == b""
    assert "örld".encode() in encoder.feed(ANSWER[4:])


def test_counts_of_usage_alone() -> None:
    events = (Started("m"), Delta(text="a"), Delta(text="b"), Finished(reason=FinishReason.LENGTH), Usage(5, 7))
    first, second, last = frames(asked(**COUNTS), events)
    assert "num_input_tokens" not in first
    assert [frame["num_output_tokens"] for frame in (first, second, last)] == [0, 0, 7]
    assert last["num_input_tokens"] == 5


def test_tokens_without_text_are_counted() -> None:
    events = (
        Started("m", 1),
        Delta(tokens=(Token(1, ""), Token(2, ""))),
        Delta(text="é", tokens=(Token(3, "é"),)),
        Finished(tokens=(Token(4, "</s>", special=True),), reason=FinishReason.EOS, generated=4),
        Usage(1, 4),
    )
    found = frames(asked(**COUNTS), events)
    assert [frame["text_output"] for frame in found] == ["", "é", ""]
    assert [frame["num_output_tokens"] for frame in found] == [2, 1, 1]


def test_reasoning_and_tool_calls_are_no_responses() -> None:
    events = (Started("m", 1), Delta(reasoning="hm"), Delta(), Finished(text="a", reason=FinishReason.EOS), Usage(1, 1))
    assert len(frames(asked(), events)) == 1


@pytest.mark.parametrize(
    ("reason", "triton", "mindie"),
    [
        (FinishReason.EOS, "stop", "eos_token"),
        (FinishReason.STOP_STRING, "stop", "eos_token"),
        (FinishReason.STOP_TOKEN, "stop", "eos_token"),
        (FinishReason.LENGTH, "length", "length"),
        (FinishReason.TOOL_CALL, "stop", "eos_token"),
        (FinishReason.CONTENT_FILTER, "content_filter", "stop_sequence"),
    ],
)
def test_finish_reasons(reason: FinishReason, triton: str, mindie: str) -> None:
    events = (Started("m", 1), Finished(text="a", reason=reason, generated=1), Usage(1, 1))
    (frame,) = frames(asked(**COUNTS), events)
    assert frame["finish_reason"] == triton
    request = decode('{"text_input": "x", "parameters": {"details": true}}', "generate_stream", dialect="mindie-triton")
    (frame,) = frames(request, events, "mindie-triton")
    assert frame["details"]["finish_reason"] == mindie


def test_several_choices_are_arrays() -> None:
    request = asked(n=2, return_finish_reason=True, return_num_output_tokens=True)
    events = (
        Started("m", 1),
        Delta(1, "b", (Token(1, "b"),)),
        Delta(0, "a", (Token(2, "a"),)),
        Finished(1, "", reason=FinishReason.LENGTH, generated=1),
        Finished(0, "!", (Token(3, "!"),), reason=FinishReason.EOS, generated=2),
        Usage(1, 3),
    )
    found = frames(request, events)
    assert [frame["text_output"] for frame in found] == [["", "b"], ["a", ""], ["", ""], ["!", ""]]
    assert [frame["finish_reason"] for frame in found] == [
        ["None", "None"],
        ["None", "None"],
        ["None", "length"],
        ["stop", "length"],
    ]
    assert [frame["num_output_tokens"] for frame in found] == [[0, 1], [1, 0], [0, 0], [1, 0]]


def test_log_probabilities_add_up() -> None:
    events = (
        Started("m", 1),
        Delta(text="a", tokens=(Token(1, "a", -0.5),)),
        Finished(text="b", tokens=(Token(None, "b", -0.25),), reason=FinishReason.EOS, generated=2),
        Usage(1, 2),
    )
    found = frames(asked(return_cumulative_logprob=True, return_logprobs=True), events)
    assert [frame["cumulative_logprob"] for frame in found] == [-0.5, -0.75]
    assert [json.loads(frame["logprobs"]) for frame in found] == [
        [{"1": {"logprob": -0.5, "rank": None, "decoded_token": "a"}}],
        [{"-1": {"logprob": -0.25, "rank": None, "decoded_token": "b"}}],
    ]


def test_full_text() -> None:
    dialect = with_options(ADAPTER.dialects["mindie-triton"], {"full_text": True})
    request = decode('{"text_input": "x"}', "generate_stream", dialect="mindie-triton")
    found = parsed(ADAPTER.server(dialect).encoder(request).feed(ANSWER))
    assert [frame["text_output"] for frame in found] == ["Hello", 'Hello "w\n', 'Hello "w\nörld']


def test_mindie_answers_always_have_an_id() -> None:
    request = decode('{"text_input": "x"}', dialect="mindie-triton")
    assert json.loads(SERVERS["mindie-triton"].encode(request, fold(ANSWER)).body)["id"] == "req-1"


def test_own_names_are_sorted_upper_case_first() -> None:
    request = decode('{"PROMPT": "x", "id": "1", "return_finish_reason": true}', model="mock_llm")
    body = SERVERS["triton"].encode(request, fold(ANSWER)).body
    assert list(json.loads(body)) == ["TEXT", "finish_reason", "id", "model_name", "model_version"]


def test_a_stream_of_one_response() -> None:
    request = asked(stream=False)
    assert not request.stream
    reply = SERVERS["triton"].encode(request, fold(ANSWER))
    assert reply.media_type == "text/event-stream; charset=utf-8"
    (frame,) = parsed(reply.body)
    assert frame["text_output"] == 'Hello "w\nörld'


def test_unicode_line_separators_are_escaped() -> None:
    events = (Started("m", 1), Finished(text="a\u2028é\x85", reason=FinishReason.EOS, generated=1), Usage(1, 1))
    data = SERVERS["triton"].encoder(asked()).feed(events)
    assert '"text_output":"a\\u2028é\\u0085"'.encode() in data
    assert parsed(data)[0]["text_output"] == "a\u2028é\x85"


def test_streamed_equals_non_streamed() -> None:
    request = decode('{"text_input": "x"}', "generate")
    whole = json.loads(SERVERS["triton"].encode(request, fold(ANSWER)).body)["text_output"]
    assert "".join(frame["text_output"] for frame in frames(asked(), ANSWER)) == whole


def test_a_failure_ends_the_stream_without_a_finish_reason() -> None:
    encoder = SERVERS["triton"].encoder(asked(**COUNTS))
    data = encoder.feed(ANSWER[:3]) + encoder.fail(BackendFailed("The backend failed."))
    *before, last = parsed(data)
    assert {frame["finish_reason"] for frame in before} == {"None"}
    assert last == {"error": "The backend failed."}
    assert not encoder.abort_after_error


def test_connections_may_be_reset_after_a_failure() -> None:
    dialect = with_options(ADAPTER.dialects["triton"], {"abort_on_error": True})
    assert ADAPTER.server(dialect).encoder(asked()).abort_after_error


def test_before_inference_an_error_is_json_and_after_it_an_event() -> None:
    server, request = SERVERS["triton"], asked()
    early = server.error(Overloaded("Too many requests are waiting.", retry_after=1.2), request)
    assert (early.status, early.media_type) == (503, "application/json")
    assert early.body == b'{"error":"Too many requests are waiting."}'
    assert early.headers == (("Retry-After", "2"),)
    late = server.error(BackendFailed("The backend failed."), request)
    assert (late.status, late.media_type) == (500, "text/event-stream; charset=utf-8")
    assert late.body == b'data: {"error":"The backend failed."}\n\n'
    whole = SERVERS["triton"].decode(ROUTES["generate"], b'{"text_input": "x"}', call())
    assert server.error(BackendFailed("The backend failed."), whole).media_type == "application/json"
