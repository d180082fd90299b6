"""When a request is sent again, on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from backends.remote.options import Retries
from backends.remote.retry import Budget, Retrier, again_after
from schemas.errors import (
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    GatewayError,
    Incomplete,
    InvalidRequest,
    Overloaded,
)

REFUSED = BackendUnavailable("x", code="upstream_connect")
RESET = BackendUnavailable("x", code="upstream_reset")
BUSY = BackendUnavailable("x", retry_after=0.7)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept, without sleeping; the clock goes on all the same."""
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
async def test_what_was_not_answered_is_asked_again(
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
        ((REFUSED, InvalidRequest("x")), 2),
        ((BackendFailed("500"),), 1),
        ((BackendTimeout("x", code="upstream_timeout"),), 1),
        ((Overloaded("429", retry_after=1.0),), 1),
        ((Incomplete("x", code="truncated"),), 1),
        ((InvalidRequest("x"),), 1),
    ],
)
async def test_what_would_fail_again_or_be_done_twice_is_not(
    outcomes: tuple[GatewayError, ...], made: int, pauses: list[float]
) -> None:
    attempts, told = Attempts(*outcomes), list[GatewayError]()
    with pytest.raises(type(outcomes[-1])) as caught:
        await Retrier(Retries(), told.append).run(attempts, soon())
    assert caught.value is outcomes[-1]
    assert attempts.made == made
    assert told == [*outcomes], "each attempt's failure is told, once"


async def test_the_upstreams_own_pause_is_kept(pauses: list[float]) -> None:
    await Retrier(Retries()).run(Attempts(BUSY, "ok"), soon())
    assert pauses[0] >= 0.7


async def test_a_pause_beyond_the_deadline_is_not_begun(pauses: list[float]) -> None:
    with pytest.raises(BackendUnavailable):
        await Retrier(Retries()).run(Attempts(BUSY, "ok"), soon(0.5))
    assert pauses == []


async def test_pauses_are_random_up_to_a_bound(pauses: list[float]) -> None:
    retrier = Retrier(Retries(budget=1e9))
    for _ in range(100):
        retrier.budget.left = 10.0
        await retrier.run(Attempts(REFUSED, REFUSED, "ok"), soon())
    first, second = pauses[::2], pauses[1::2]
    assert 0 <= min(first) < 0.03 < max(first) <= 0.05
    assert 0 <= min(second) < 0.05 < max(second) <= 0.1


async def test_retries_are_a_tenth_of_the_traffic(pauses: list[float]) -> None:
    retrier = Retrier(Retries())
    made = 0
    for _ in range(1000):
        attempts = Attempts(REFUSED, REFUSED, REFUSED)
        with pytest.raises(BackendUnavailable):
            await retrier.run(attempts, soon(1e6))
        made += attempts.made
    assert 1100 <= made <= 1110


def test_no_budget_no_retries() -> None:
    assert not Budget(0.0).spend()


@pytest.mark.parametrize("resets", [1, 2])
def test_a_connection_may_break_once(resets: int) -> None:
    assert again_after(RESET, resets) == (resets == 1)
    assert again_after(REFUSED, resets)
