"""Backends that start late or not at all, who may answer, and what is counted of an endpoint."""

from __future__ import annotations

import asyncio
import errno
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from backends.base import Health
from backends.scripted import ScriptedBackend
from gateway import service as module
from gateway.access.keys import Keys
from gateway.config import Config
from gateway.routing import backend_health
from gateway.service import Service
from schemas.errors import BackendUnavailable
from tests.gateway.serving import endpoint

CHAT = endpoint(("a", "echo", 100))


class NeverStarts(ScriptedBackend):
    """Fails at every start, whatever it waits for."""

    starts = 0

    async def start(self) -> None:
        self.starts += 1
        raise BackendUnavailable("It is not there.")


def service(backend: ScriptedBackend | None = None, **endpoints: object) -> Service:
    config = Config(backends={"s": {"kind": "scripted"}}, endpoints=endpoints or {"chat": CHAT})  # type: ignore[arg-type]
    return Service(config, {"s": backend or ScriptedBackend("s")}, Keys())


def test_a_backend_is_started_again_after_at_most_half_a_minute() -> None:
    assert (backend_health._FIRST_DELAY, backend_health._LONGEST_DELAY) == (1.0, 30.0)


def test_a_lost_engine_is_known_within_half_a_second() -> None:
    assert module._HEALTH_INTERVAL <= 0.25


async def test_pauses_between_starts_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_health, "_FIRST_DELAY", 0.001)
    monkeypatch.setattr(backend_health, "_LONGEST_DELAY", 0.005)
    backend = NeverStarts("s")
    served = service(backend)
    with capture_logs() as entries:
        await served.start()
        while backend.starts < 7:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await served.aclose()
    pauses = [entry["again_in"] for entry in entries if entry["event"] == "backend.failed"]
    assert pauses[:6] == [0.001, 0.002, 0.004, 0.005, 0.005, 0.005]
    assert served.health == Health("failed", "s: It is not there.")


async def test_what_fails_to_close_keeps_nothing_else_open(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, closed = ScriptedBackend("s"), []

    async def fail() -> None:
        raise OSError("it cannot be closed")

    served = service(backend)
    monkeypatch.setattr(backend, "aclose", fail)
    monkeypatch.setattr(served.stores, "close", lambda: closed.append("stores"))
    monkeypatch.setattr(served, "metrics", SimpleNamespace(close=lambda: closed.append("metrics")))
    with pytest.raises(OSError, match="cannot be closed"):
        await served.aclose()
    assert closed == ["stores", "metrics"]


async def test_health_is_checked_on_after_a_check_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does where no descriptor is left for the files of other workers."""
    monkeypatch.setattr(module, "_HEALTH_INTERVAL", 0.001)
    served = service()
    looks, look = 0, served.live.look

    def fails(*given: Any) -> None:
        nonlocal looks
        looks += 1
        if looks < 5:
            raise OSError(errno.EMFILE, "Too many open files")
        look(*given)

    monkeypatch.setattr(served.live, "look", fails)
    with capture_logs() as entries:
        await served.start()
        async with asyncio.timeout(60):
            while looks < 6 or served.health.status != "ready":  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await served.aclose()
    assert [entry["event"] for entry in entries] == ["service.not_checked"]


async def test_what_cannot_be_served_yet_is_served_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a disk is full on which the figures of a new experiment are to lie."""
    served = service()
    before, serve, full = served.router, served.experiments.serve, [True]

    def fails(*given: Any) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        serve(*given)

    monkeypatch.setattr(served.experiments, "serve", fails)
    monkeypatch.setattr(served._live, "refresh", iter([True, False, False, False]).__next__)
    served.is_changeable = True
    with capture_logs() as entries:
        served.refresh()
        await served._look()
        assert served.router is before
        full.clear()
        await served._look()
        assert served.router is not before
    assert [entry["event"] for entry in entries] == ["state.not_served"], "once"
    await served.aclose()


@pytest.mark.slow
def test_an_id_cannot_be_guessed_from_others() -> None:
    one, other = service(), service()
    ids = [each.new_id() for each in (one, other) for _ in range(2000)]
    assert len(set(ids)) == 4000
    assert {len(id) for id in ids} == {32}
    # Each of the 128 bits is a coin: 2,000 heads in 4,000 tosses, give or take 6 standard deviations (32 each).
    numbers = [int(id, 16) for id in ids]
    for bit in range(128):
        assert 1810 < sum(number >> bit & 1 for number in numbers) < 2190
    # A counter, of a worker or of all, would leave most bits of neighbours equal.
    changed = [(a ^ b).bit_count() for a, b in pairwise(numbers)]
    assert min(changed) > 20


def test_ended_requests_are_counted_by_endpoint() -> None:
    served = service()
    for seconds, ok in ((1.0, True), (2.0, True), (0.5, False)):
        served.counts.add("chat", seconds, ok=ok)
    counts = served.counts.joined(served.catalog).cards["chat"].counts
    assert counts is not None
    assert (counts.succeeded, counts.succeeded_ns, counts.failed, counts.failed_ns) == (2, 3 * 10**9, 1, 5 * 10**8)


def test_a_draining_worker_is_not_ready() -> None:
    served = service()
    served.backend_health.states["s"] = Health("ready")
    assert served.health.status == "ready"
    served.draining = True
    assert served.health == Health("failed", "shutting down")
