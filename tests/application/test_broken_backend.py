"""A backend whose `start` or `healthy` raises is reported as failed and checked again until it recovers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from backends.base import Health
from backends.scripted import ScriptedBackend
from gateway import service
from gateway.app import create_app
from gateway.routing import backend_health
from tests.gateway.serving import config


class Broken(ScriptedBackend):
    """Raises in the first two calls of each of `methods`."""

    def __init__(self, *methods: str) -> None:
        super().__init__("s")
        self.methods = methods
        self.times = dict.fromkeys(methods, 0)
        self.called: Callable[[], None] = lambda: None

    async def start(self) -> None:
        self._fail("start")
        await super().start()

    async def healthy(self) -> Health:
        self._fail("healthy")
        return await super().healthy()

    def _fail(self, method: str) -> None:
        self.called()
        if method in self.methods:
            self.times[method] += 1
            if self.times[method] <= 2:
                raise KeyError("of a bug")


@pytest.mark.parametrize("methods", [("start",), ("healthy",), ("start", "healthy")], ids=" and ".join)
async def test_a_backend_that_raises_fails_and_recovers(
    methods: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_HEALTH_INTERVAL", 0.01)
    for name in ("_FIRST_DELAY", "_LONGEST_DELAY"):
        monkeypatch.setattr(backend_health, name, 0.01)
    backend = Broken(*methods)
    app = create_app(config("echo"), {"s": backend})
    worker, seen = app.state.service, list[Health]()

    def note() -> None:
        if not seen or seen[-1] != worker.health:
            seen.append(worker.health)

    # At each call: one that succeeds may follow a failure before anybody else runs.
    backend.called = note
    async with app.lifespan(), asyncio.timeout(60):
        while worker.health.status != "ready":  # noqa: ASYNC110 - a poll is what health is for
            await asyncio.sleep(0.001)
        note()
    assert [health.status for health in seen][-2:] == ["failed", "ready"]
    assert not any("bug" in health.detail for health in seen)
