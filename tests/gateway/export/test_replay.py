"""What a replay compares, and which rows it can ask again."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest

from gateway.export.replay import Compared, Replayed, compare, decode_row
from gateway.export.rows import Choice, Response, Row
from gateway.registry import adapters
from schemas.ir import ChatPrompt, TextPrompt

CHAT = '{"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "stream": true, "max_tokens": 7}'


def row(number: int = 0, **fields: Any) -> Row:
    response = msgspec.json.encode(Response((Choice(0, "one two three"),))).decode()
    served = (1.0, {}, "chat", "a", "a", True, "ok", "ok", True, ("eos",), 3, 5, 0.5, 1.0, "user", "00ff", number, 1)
    made = Row(f"id-{number}", None, "2026-01-01", 0, 200, 1000, CHAT, response, *served, "openai", "openai", "chat")
    return msgspec.structs.replace(made, **fields)


def compared(found: list[Replayed], metric: str) -> Compared:
    return next(each for each in compare(found, {}, 0.05).compared if each.metric == metric)


def answered(number: int, text: str = "one two three", latency: float = 1.0, **fields: Any) -> Replayed:
    return Replayed(row(number, **fields), "ok", 0.25, latency, 5, text)


def test_a_row_becomes_the_request_that_it_was() -> None:
    found = decode_row(row(), adapters(), "chat:b")
    assert found is not None
    assert (found.model, found.stream, found.stopping.max_new_tokens) == ("chat:b", True, 7)
    assert isinstance(found.prompts[0], ChatPrompt)
    assert found.origin is None  # its body names another model


def test_a_row_of_a_protocol_that_names_no_model() -> None:
    fields = {"protocol": "tgi", "dialect": "tgi", "operation": "generate", "request": '{"inputs": "Hi"}'}
    found = decode_row(row(**fields), adapters(), "chat:b")
    assert found is not None
    assert (found.model, found.stream, type(found.prompts[0])) == ("chat:b", False, TextPrompt)


@pytest.mark.parametrize(
    "fields",
    [
        {"request": None},
        {"request": "no JSON"},
        {"protocol": "gone"},
        {"operation": "gone"},
        {"request": CHAT.replace("}],", '}], "n": 2,')},
    ],
)
def test_rows_that_cannot_be_asked_again(fields: dict[str, Any]) -> None:
    assert decode_row(row(**fields), adapters(), "chat:b") is None


def test_texts_are_compared_word_by_word_where_both_answered() -> None:
    found = [answered(0), answered(1, "one too three four"), answered(2, "two", outcome="timeout")]
    report = compare(found, {"no text": 3}, 0.05)
    assert (report.identical.estimate, report.word_agreement.estimate) == (0.5, 0.75)
    assert (report.requests, report.skipped, report.failures) == (3, {"no text": 3}, {})


def test_differences_are_taken_per_request() -> None:
    """Requests differ by seconds, and the arms by a tenth of one."""
    found = [
        Replayed(row(number, latency=float(number % 7)), "ok", None, number % 7 + 0.1 + number % 3 / 100, 5, "")
        for number in range(400)
    ]
    latency = compared(found, "latency")
    assert 0.09 < latency.difference.low < latency.difference.high < 0.13
    assert (latency.requests, compared(found, "time_to_first_token").requests) == (400, 0)


def test_success_has_bounds_although_nothing_differed() -> None:
    success = compared([answered(number) for number in range(200)], "success")
    assert success.difference.estimate == 0
    assert -0.05 < success.difference.low < 0 < success.difference.high < 0.05


def test_a_new_failure_counts_against_the_new_model() -> None:
    found = [Replayed(row(number), "timeout" if number % 4 == 0 else "ok") for number in range(200)]
    success = compared(found, "success")
    assert (success.logged, success.replayed, success.difference.estimate) == (1.0, 0.75, -0.25)
    assert -0.45 < success.difference.low < success.difference.high < -0.05
    assert compare(found, {}, 0.05).failures == {"timeout": 50}


def test_what_never_differed_has_no_interval() -> None:
    tokens = compared([answered(number) for number in range(200)], "completion_tokens")
    assert (tokens.difference.estimate, tokens.difference.low, tokens.difference.high) == (0, -inf, inf)
