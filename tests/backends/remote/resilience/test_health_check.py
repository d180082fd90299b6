"""Health checks of a remote server."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from backends.remote.diagnosis import Diagnosis
from backends.remote.options import RemoteOptions
from backends.remote.resilience import health_check
from backends.remote.resilience.breaker import Breaker
from backends.remote.resilience.health_check import HealthCheck
from backends.transport.general import GeneralTransport
from tests.faults.recorded import ask, playing, record, remote, request
from tests.faults.upstream import Asked, Close, Hang, Step, response, upstream


async def checked(url: str, *, times: int = 1) -> tuple[HealthCheck, Breaker]:
    """A health check of the server at `url` and its breaker, after that many checks."""
    breaker, transport = Breaker(2), GeneralTransport(url)
    check = HealthCheck("far", transport, "/health", breaker, Diagnosis(RemoteOptions(url=url)))
    for _ in range(times):
        await check.check()
    await transport.aclose()
    return check, breaker


@pytest.mark.parametrize(("status", "failures"), [("200 OK", 0), ("404 Not Found", 0), ("503 Busy", 0), ("500 No", 1)])
async def test_any_reply_shows_that_the_server_was_reached(status: str, failures: int) -> None:
    async with upstream(lambda _: (response(b"{}", status),)) as there:
        with capture_logs() as logs:
            check, breaker = await checked(there.url)
    assert check.health.status == "ready"
    assert breaker.failures == failures
    assert [asked.line for asked in there.asked] == ["GET /health HTTP/1.1"]
    assert [entry["event"] for entry in logs] == ["backend.reached" if status == "200 OK" else "backend.refused"]


async def test_a_web_page_is_no_server() -> None:
    async with upstream(lambda _: (response(b"<html>", type="text/html; charset=utf-8"),)) as there:
        with capture_logs() as logs:
            await checked(there.url)
    assert [(entry["event"], entry["why"]) for entry in logs] == [
        ("backend.refused", "it answers with a web page (text/html): is `url` right?")
    ]


async def test_a_server_without_a_reply_is_loading_and_the_reason_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check, "CHECK_TIMEOUT", 0.05)
    async with upstream(lambda _: (Hang(),)) as there:
        check, breaker = await checked(there.url, times=2)
    assert (check.health.status, check.health.detail) == ("loading", "The backend did not answer in time.")
    assert breaker.open


async def test_a_server_that_comes_up_becomes_ready() -> None:
    up = False

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if up else (Close(),)

    async with upstream(play) as there, remote("tgi", there.url, health_interval=0.02) as far:
        assert (await far.healthy()).status == "loading"
        up = True
        async with asyncio.timeout(60):
            while (await far.healthy()).status != "ready":  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_an_open_breaker_still_serves_and_a_check_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
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
