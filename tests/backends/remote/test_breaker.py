"""The circuit breaker: what counts as a failure of the server, and what closes the breaker again."""

from __future__ import annotations

import asyncio

import pytest

from backends.remote import health_check
from backends.remote.breaker import COUNTS, Breaker
from schemas.errors import (
    BackendError,
    BackendFailed,
    BackendUnavailable,
    Fault,
    GatewayError,
    Incomplete,
    InvalidRequest,
    Overloaded,
)
from tests.faults.recorded import ask, playing, record, remote, request
from tests.faults.upstream import Asked, Close, Step, response, upstream


def test_every_fault_is_classified() -> None:
    assert set(COUNTS) == set(Fault)


@pytest.mark.parametrize("fault", Fault)
def test_a_fault_counts_as_classified(fault: Fault) -> None:
    breaker = Breaker(1)
    breaker.record_failure(BackendError("x", fault=fault))
    assert breaker.open == COUNTS[fault]


@pytest.mark.parametrize("fault", Fault)
def test_a_code_alone_is_no_fault(fault: Fault) -> None:
    """An upstream chooses the code of its errors, and cannot open the breaker with it."""
    breaker = Breaker(1)
    breaker.record_failure(InvalidRequest("x", code=fault.value))
    breaker.record_failure(BackendFailed("x", code=fault.value))
    assert not breaker.open


@pytest.mark.parametrize("status", [500, 502, 504])
def test_consecutive_failures_open_the_breaker_and_a_success_closes_it(status: int) -> None:
    breaker = Breaker(3)
    breaker.record_status(status)
    breaker.record_failure(Incomplete("x", fault=Fault.TRUNCATED))
    assert not breaker.open
    breaker.record_failure(BackendUnavailable("x", fault=Fault.CONNECT))
    assert breaker.open
    breaker.record_success()
    assert not breaker.open


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 503])
def test_a_refused_request_shows_that_the_server_works(status: int) -> None:
    breaker = Breaker(2)
    breaker.record_status(500)
    breaker.record_status(status)
    breaker.record_status(500)
    assert not breaker.open


@pytest.mark.parametrize(
    "error", [InvalidRequest("x"), Overloaded("x"), BackendFailed("x", code="upstream_error"), BackendUnavailable("x")]
)
def test_an_error_counted_by_its_status_is_not_counted_twice(error: GatewayError) -> None:
    breaker = Breaker(1)
    breaker.record_failure(error)
    assert not breaker.open


async def test_an_open_breaker_still_serves_and_a_probe_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check, "CHECK_TIMEOUT", 60.0)
    good = response(await record("openai", stream=False))
    plays: list[Step] = [Close()]
    async with playing("openai", lambda _: (plays[0],), retries={"attempts": 1}) as (far, _):
        for _ in range(5):
            await ask(far, request("openai", stream=False))
        assert (await far.healthy()).detail == "5 failures in a row"
        assert (await far.healthy()).status == "ready"
        assert far._health_check is not None
        await far._health_check.check()
        assert (await far.healthy()).detail == ""
        plays[0] = good
        _, error = await ask(far, request("openai", stream=False))
        assert error is None


async def test_a_server_that_was_never_reached_is_loading() -> None:
    up = False

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if up else (Close(),)

    async with upstream(play) as there, remote("tgi", there.url, health_interval=0.02) as far:
        assert (await far.healthy()).status == "loading"
        up = True
        async with asyncio.timeout(60):
            while (await far.healthy()).status != "ready":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
