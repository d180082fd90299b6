"""What counts as a server's own failure, and how it heals."""

from __future__ import annotations

import asyncio

import pytest

from backends.remote import watch
from backends.remote.breaker import Breaker
from schemas.errors import BackendFailed, BackendUnavailable, GatewayError, Incomplete, InvalidRequest, Overloaded
from tests.faults.recorded import ask, playing, record, remote, request
from tests.faults.upstream import Asked, Close, Step, response, upstream


@pytest.mark.parametrize("status", [500, 502, 504])
def test_failures_in_a_row_open_it(status: int) -> None:
    breaker = Breaker(3)
    breaker.replied(status)
    breaker.failed(Incomplete("x", code="truncated"))
    assert not breaker.open
    breaker.failed(BackendUnavailable("x", code="upstream_connect"))
    assert breaker.open
    breaker.succeeded()
    assert not breaker.open


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 503])
def test_a_refusal_is_a_sign_of_life(status: int) -> None:
    breaker = Breaker(2)
    breaker.replied(500)
    breaker.replied(status)
    breaker.replied(500)
    assert not breaker.open


@pytest.mark.parametrize(
    "error", [InvalidRequest("x"), Overloaded("x"), BackendFailed("x", code="upstream_error"), BackendUnavailable("x")]
)
def test_what_was_counted_by_its_status_is_not_counted_twice(error: GatewayError) -> None:
    breaker = Breaker(1)
    breaker.failed(error)
    assert not breaker.open


async def test_a_lone_server_is_asked_all_the_same_and_heals_through_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_PATIENCE", 60.0)
    good = response(await record("openai", stream=False))
    plays: list[Step] = [Close()]
    async with playing("openai", lambda _: (plays[0],), retries={"attempts": 1}) as (far, _):
        for _ in range(5):
            await ask(far, request("openai", stream=False))
        assert (await far.healthy()).detail == "5 failures in a row"
        assert (await far.healthy()).status == "ready"
        assert far._watch is not None
        await far._watch.look()
        assert (await far.healthy()).detail == ""
        plays[0] = good
        _, error = await ask(far, request("openai", stream=False))
        assert error is None


async def test_a_server_that_was_never_there_is_on_its_way() -> None:
    up = False

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if up else (Close(),)

    async with upstream(play) as there, remote("tgi", there.url, health_interval=0.02) as far:
        assert (await far.healthy()).status == "loading"
        up = True
        async with asyncio.timeout(60):
            while (await far.healthy()).status != "ready":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
