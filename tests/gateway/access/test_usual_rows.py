"""Rows that are counted at once, in C: the same counts, refusals and answers as row by row."""

from __future__ import annotations

import asyncio
import mmap
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access import usual_rows
from gateway.access.counters import CounterTable
from gateway.access.limits import Ticket
from gateway.access.local_limiter import LocalLimiter
from gateway.access.rules import Rules, RuleTable
from gateway.config import EndpointLimit
from schemas.errors import Quota, RateLimited
from tests.missing_tools import missing

COMPILED = "gateway.access.usual_rows.compiled"
START = 1_000_000.0
LIMITS = st.lists(
    st.fixed_dictionaries(
        {
            "requests": st.sampled_from([None, 3, 100]),
            "tokens": st.sampled_from([None, 50, 1000]),
            "cost": st.sampled_from([None, 0.5]),
            "window": st.sampled_from(["minute", "hour", "day"]),
            "concurrent": st.sampled_from([None, 4]),
        }
    )
    .filter(lambda limit: any(limit[kind] is not None for kind in ("requests", "tokens", "cost")))
    .map(lambda limit: EndpointLimit(**limit)),
    min_size=1,
    max_size=3,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 60)),
        st.tuples(st.just("leave"), st.sampled_from([None, 0, 7, 90]), st.sampled_from([0.0, 0.25])),
        st.tuples(st.just("pass"), st.sampled_from([0.4, 1.0, 30.0, 61.0, 4000.0, -2.0])),
        st.tuples(st.just("turn")),
    ),
    min_size=1,
    max_size=30,
)

pytestmark = pytest.mark.skipif(find_spec(COMPILED) is None, reason=missing("a C compiler"))


async def found(rules: Rules, steps: list[Any], now: list[float]) -> tuple[list[Any], bytes]:
    """What a limiter says of each request, and what its table has in the end."""
    limiter, said, tickets = LocalLimiter(None, None), list[Any](), list[Ticket]()
    limiter.__dict__["_table"] = table = CounterTable(None, 8)  # small: names may have the same place
    for what, *values in steps:
        if what == "enter":
            try:
                tickets.append(limiter.enter_at_once(rules, values[0]))
                said.append((tickets[-1].quotas, tickets[-1].left))
            except RateLimited as error:
                said.append((str(error), error.quotas, error.retry_after))
        elif what == "leave" and tickets:
            limiter.leave(tickets.pop(0), *values)
        elif what == "pass":
            now[0] += values[0]
        await asyncio.sleep(0)
    counted = bytes(table.memory)
    await limiter.aclose()
    return said, counted


@given(limits=LIMITS, steps=STEPS)
def test_both_ways_count_alike(limits: list[EndpointLimit], steps: list[Any]) -> None:
    rules = RuleTable({"chat": limits}).of(None, "chat", None)
    assert rules is not None
    results = []
    for is_compiled in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            now = [START]
            patch.setattr("gateway.access.local_limiter.time.time", lambda now=now: now[0])
            if not is_compiled:
                patch.setattr(usual_rows, "take", lambda *_: None)
                patch.setattr(usual_rows, "correct", lambda *_: False)
            results.append(asyncio.run(found(rules, steps, now)))
    assert results[0] == results[1]


def test_usual_requests_are_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = LocalLimiter(None, None)
    rules = RuleTable({"chat": [EndpointLimit(requests=9, tokens=90)]}).of(None, "chat", None)
    assert rules is not None
    now = [START]
    monkeypatch.setattr("gateway.access.local_limiter.time.time", lambda: now[0])

    async def ask() -> None:
        limiter.enter_at_once(rules, 5)  # makes the rows
        monkeypatch.setattr(limiter, "_take", None)
        ticket = limiter.enter_at_once(rules, 10)
        assert ticket.quotas == [Quota("requests", 9, 7, 60), Quota("tokens", 90, 75, 60)]
        monkeypatch.setattr("gateway.access.local_limiter.corrections", None)
        limiter.leave(ticket, 4, 0.0)
        await asyncio.sleep(0)
        assert limiter.enter_at_once(rules, 0).left == (6.0, 81.0)
        await limiter.aclose()

    asyncio.run(ask())


def test_rows_outside_of_the_memory_are_refused() -> None:
    memory = mmap.mmap(-1, 4096)
    for row, count in ((-8, 0), (4072, 0), (0, -8), (0, 4096)):
        rows = usual_rows.packed([(row, (1, 2), count, "requests", 60.0, 1.0)])
        with pytest.raises(ValueError, match="a row is not in the memory"):
            usual_rows.take(memory, rows, 1.0)
        with pytest.raises(ValueError, match="a row is not in the memory"):
            usual_rows.correct(memory, rows, 1.0, 0.0)
    for wrong in ((memory,), (memory, b"", "1"), (b"", b"", 1.0), (memory, "", 1.0)):
        with pytest.raises((TypeError, BufferError)):
            usual_rows.take(*wrong)
