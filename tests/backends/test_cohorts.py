"""Cohorts: steps of one turn are taken together, and one that fails harms no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backends import cohorts
from backends.cohorts import FEW, Steps, cohorts_of
from backends.transport.outbox import outboxes_of


def steps(name: str, taken: list[str], count: int = 2, *, fails: bool = False) -> Steps:
    for number in range(count):
        taken.append(f"{name}{number}")
        yield
    if fails:
        raise OSError(name)


async def turn() -> None:
    await asyncio.sleep(0)


async def test_few_take_their_steps_at_once() -> None:
    loop, taken = asyncio.get_running_loop(), list[str]()
    for name in "abc":
        cohorts_of(loop).join(steps(name, taken))
    assert taken == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert cohorts_of(loop) is cohorts_of(loop)


async def test_many_of_a_turn_make_the_next_ones_a_cohort_until_there_are_few() -> None:
    joined, taken = cohorts_of(asyncio.get_running_loop()), list[str]()
    for number in range(FEW):
        joined.join(steps(str(number), taken, 1))
    assert len(taken) == FEW
    await turn()
    taken.clear()
    joined.join(steps("a", taken))
    joined.join(steps("b", taken, 3))
    assert taken == []
    await turn()
    assert taken == ["a0", "b0", "a1", "b1", "b2"]
    joined.join(steps("c", taken))
    assert taken[-1] == "c1", "two were few"
    for _ in range(3):  # single ones, each in a turn of its own
        await turn()
        joined.join(steps("d", taken))
        assert taken[-1] == "d1"


async def test_a_step_that_fails_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "FEW", 0)
    loop, taken, failures = asyncio.get_running_loop(), list[str](), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    for name, fails in (("a", False), ("b", True), ("c", False)):
        cohorts_of(loop).join(steps(name, taken, 2, fails=fails))
    await turn()
    assert taken == ["a0", "b0", "c0", "a1", "b1", "c1"]
    assert [str(each["exception"]) for each in failures] == ["b"]


async def test_hundreds_are_several_cohorts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "FEW", 0)
    monkeypatch.setattr(cohorts, "MOST", 2)
    taken = list[str]()
    for name in "abc":
        cohorts_of(asyncio.get_running_loop()).join(steps(name, taken))
    await turn()
    assert taken == ["a0", "b0", "a1", "b1", "c0", "c1"]


async def test_what_a_cohort_writes_leaves_with_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "FEW", 0)
    loop = asyncio.get_running_loop()
    sent: list[int] = []
    monkeypatch.setattr(cohorts_of(loop), "_outboxes", SentNow(sent))
    cohorts_of(loop).join(steps("a", taken := []))
    await turn()
    assert (taken, sent) == (["a0", "a1"], [1])
    assert outboxes_of(loop) is outboxes_of(loop)


class SentNow:
    """Notes that all outboxes were to send."""

    def __init__(self, sent: list[int]) -> None:
        self._sent = sent

    def send(self) -> None:
        self._sent.append(1)
