"""When a request is sent again, and after what pause. The clock is virtual."""

from __future__ import annotations

import asyncio
import math

import pytest

from backends.remote.options import Retries
from backends.remote.resilience.retry import MAX_RETRIES, Retrier, RetryBudget, may_retry
from schemas.errors import (
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    Fault,
    GatewayError,
    Incomplete,
    InvalidRequest,
    Overloaded,
)

REFUSED = BackendUnavailable("x", fault=Fault.CONNECT)
RESET = BackendUnavailable("x", fault=Fault.RESET)
RESET_TWICE = BackendUnavailable("x", fault=Fault.RESET)
RESET_TWICE.sends = 2
BUSY = BackendUnavailable("x", retry_after=0.7)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of every `asyncio.sleep`, which returns at once and advances the loop's clock."""
    slept: list[float] = []
    loop_time = asyncio.BaseEventLoop.time

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: loop_time(loop) + sum(slept))
    return slept


class Attempts:
    def __init__(self, *outcomes: GatewayError | str) -> None:
        self.outcomes = outcomes
        self.made = 0

    async def __call__(self) -> str:
        outcome = self.outcomes[self.made]
        self.made += 1
        if isinstance(outcome, GatewayError):
            raise outcome
        return outcome


def soon(seconds: float = 60.0) -> float:
    return asyncio.get_running_loop().time() + seconds


@pytest.mark.parametrize(
    ("outcomes", "made"),
    [
        (("ok",), 1),
        ((REFUSED, "ok"), 2),
        ((REFUSED, REFUSED, "ok"), 3),
        ((RESET, "ok"), 2),
        ((RESET, REFUSED, "ok"), 3),
        ((BUSY, "ok"), 2),
        ((BackendTimeout("504"), "ok"), 2),
    ],
)
async def test_a_request_that_was_not_answered_is_retried(
    outcomes: tuple[GatewayError | str, ...], made: int, pauses: list[float]
) -> None:
    attempts = Attempts(*outcomes)
    assert await Retrier(Retries()).run(attempts, soon()) == "ok"
    assert attempts.made == made
    assert len(pauses) == made - 1


@pytest.mark.parametrize(
    ("outcomes", "made"),
    [
        ((REFUSED, REFUSED, REFUSED), 3),
        ((RESET, RESET), 2),
        ((RESET_TWICE,), 1),
        ((REFUSED, RESET_TWICE), 2),
        ((REFUSED, InvalidRequest("x")), 2),
        ((BackendFailed("500"),), 1),
        ((BackendTimeout("x", fault=Fault.TIMEOUT),), 1),
        ((Overloaded("429", retry_after=1.0),), 1),
        ((Incomplete("x", fault=Fault.TRUNCATED),), 1),
        ((InvalidRequest("x"),), 1),
    ],
)
async def test_a_request_that_would_fail_again_or_run_twice_is_not_retried(
    outcomes: tuple[GatewayError, ...], made: int, pauses: list[float]
) -> None:
    attempts, reported = Attempts(*outcomes), list[GatewayError]()
    with pytest.raises(type(outcomes[-1])) as caught:
        await Retrier(Retries(), reported.append).run(attempts, soon())
    assert caught.value is outcomes[-1]
    assert attempts.made == made
    assert reported == [*outcomes], "the failure of each attempt is reported, once"


async def test_a_pause_is_at_least_the_upstreams_retry_after(pauses: list[float]) -> None:
    await Retrier(Retries()).run(Attempts(BUSY, "ok"), soon())
    assert pauses[0] >= 0.7


async def test_a_pause_that_would_end_after_the_deadline_is_not_begun(pauses: list[float]) -> None:
    with pytest.raises(BackendUnavailable):
        await Retrier(Retries()).run(Attempts(BUSY, "ok"), soon(0.5))
    assert pauses == []


async def test_a_pause_that_would_be_longer_than_the_longest_is_not_begun(pauses: list[float]) -> None:
    away, retrier = BackendUnavailable("x", retry_after=1.5), Retrier(Retries(cap=1.0))
    tokens = retrier.budget.tokens
    with pytest.raises(BackendUnavailable) as caught:
        await retrier.run(Attempts(away, "ok"), soon())
    assert (caught.value, pauses, retrier.budget.tokens) == (away, [], tokens)
    assert await Retrier(Retries(cap=2.0)).run(Attempts(away, "ok"), soon()) == "ok"
    assert pauses == [1.5]


async def test_pauses_have_full_jitter(pauses: list[float]) -> None:
    retrier = Retrier(Retries(budget=1e9))
    for _ in range(100):
        retrier.budget.tokens = 10.0
        await retrier.run(Attempts(REFUSED, REFUSED, "ok"), soon())
    first, second = pauses[::2], pauses[1::2]
    assert 0 <= min(first) < 0.03 < max(first) <= 0.05
    assert 0 <= min(second) < 0.05 < max(second) <= 0.1


@pytest.mark.slow
async def test_the_budget_bounds_retries_to_a_tenth_of_the_traffic(pauses: list[float]) -> None:
    retrier = Retrier(Retries())
    made = 0
    for _ in range(1000):
        attempts = Attempts(REFUSED, REFUSED, REFUSED)
        with pytest.raises(BackendUnavailable):
            await retrier.run(attempts, soon(1e6))
        made += attempts.made
    assert 1100 <= made <= 1110


def test_quiet_times_save_up_a_bounded_budget() -> None:
    budget = RetryBudget(0.5, capacity=3.0)
    for _ in range(100):
        budget.deposit()
    assert [budget.withdraw() for _ in range(4)] == [True, True, True, False]
    budget.deposit()
    assert not budget.withdraw()
    budget.deposit()
    assert budget.withdraw()


@pytest.mark.parametrize("seconds", [60.0, 0.0])
async def test_a_retry_that_is_not_made_takes_nothing_from_the_budget(seconds: float, pauses: list[float]) -> None:
    retrier = Retrier(Retries(attempts=1 if seconds else 3))
    with pytest.raises(BackendUnavailable):
        await retrier.run(Attempts(BUSY), soon(seconds))
    assert retrier.budget.tokens == 10.0


def test_without_a_budget_nothing_is_retried() -> None:
    assert not RetryBudget(0.0).withdraw()


def test_every_fault_is_classified() -> None:
    assert set(MAX_RETRIES) == set(Fault)


@pytest.mark.parametrize("occurrences", [1, 2, 3])
@pytest.mark.parametrize("fault", Fault)
def test_a_fault_is_retried_as_often_as_classified(fault: Fault, occurrences: int) -> None:
    assert may_retry(BackendUnavailable("x", fault=fault), occurrences) == (occurrences <= MAX_RETRIES[fault])


def test_only_faults_before_the_upstream_began_are_retried() -> None:
    assert {fault: most for fault, most in MAX_RETRIES.items() if most} == {Fault.CONNECT: math.inf, Fault.RESET: 1}


@pytest.mark.parametrize("code", ["upstream_reset", "upstream_timeout", "anything"])
def test_the_code_of_an_error_decides_nothing(code: str) -> None:
    assert may_retry(BackendUnavailable("x", code=code), 2)
    assert may_retry(BackendTimeout("x", code=code), 2)
    assert not may_retry(BackendFailed("x", code=code), 1)
