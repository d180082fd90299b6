"""Which backends can answer: who is waited for, and which target is asked first."""

from __future__ import annotations

import asyncio

import pytest

from backends.base import Health
from backends.scripted import ScriptedBackend
from gateway.config import ServedEntity
from gateway.routing import backend_health as module
from gateway.routing.backend_health import BackendHealth
from gateway.routing.target import Target
from schemas.errors import BackendUnavailable


@pytest.fixture
def backends() -> dict[str, ScriptedBackend]:
    return {name: ScriptedBackend(name) for name in "st"}


@pytest.fixture
def health(backends: dict[str, ScriptedBackend]) -> BackendHealth:
    return BackendHealth(backends)


@pytest.mark.parametrize("status", ["ready", "failed", "loading"])
async def test_a_request_passes_whose_backend_is_ready(
    health: BackendHealth, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOADING_TIMEOUT", 0.05)
    health.states["s"] = Health(status)  # type: ignore[arg-type]
    for wait in (False, True):
        if status == "ready":
            await health.ready("s", wait=wait)
        else:
            with pytest.raises(BackendUnavailable, match="loading" if status == "loading" else "reached"):
                await health.ready("s", wait=wait)


async def test_a_backend_that_loads_for_the_first_time_is_waited_for(health: BackendHealth) -> None:
    waiting = asyncio.create_task(health.ready("s", wait=True))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    health.states["s"] = Health("ready")
    await waiting


async def test_a_backend_that_was_ready_waits_for_itself(health: BackendHealth) -> None:
    async def changed() -> None: ...

    await health.start("s", changed)
    assert health.states["s"].status == "loading"  # not checked since
    await health.ready("s", wait=True)
    with pytest.raises(BackendUnavailable):
        await health.ready("s", wait=False)


async def test_a_check_says_whether_something_changed(health: BackendHealth) -> None:
    assert await health.check()
    assert not await health.check()


def test_targets_in_trouble_or_loading_come_last_and_stay(
    health: BackendHealth, backends: dict[str, ScriptedBackend]
) -> None:
    arms = tuple(ServedEntity(name=name, backend=name, traffic_percentage=50) for name in backends)
    one, other = (Target("chat", arm, backends[arm.backend], "echo") for arm in arms)
    health.states = dict.fromkeys(backends, Health("ready"))
    assert health.preferred((one, other)) == (one, other)
    health.states["s"] = Health("ready", "5 failures in a row")
    assert health.preferred((one, other)) == (other, one)
    health.states["t"] = Health("ready", "5 failures in a row")
    assert health.preferred((one, other)) == (one, other)
    health.states["s"] = Health("loading", "weights 40%")
    assert health.preferred((one, other)) == (other, one)
    health.states["t"] = Health("failed")  # which a request learns without a wait
    assert health.preferred((one, other)) == (other, one)
