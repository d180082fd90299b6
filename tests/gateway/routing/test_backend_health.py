"""Which backends can answer: who is waited for, and which target is asked first."""

from __future__ import annotations

import asyncio
from time import monotonic

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


@pytest.fixture
def targets(backends: dict[str, ScriptedBackend]) -> tuple[Target, ...]:
    arms = (ServedEntity(name=name, backend=name, traffic_percentage=50) for name in backends)
    return tuple(Target("chat", arm, backends[arm.backend], "echo") for arm in arms)


@pytest.mark.parametrize("status", ["ready", "failed", "loading"])
async def test_a_request_passes_whose_backend_is_ready(health: BackendHealth, status: str) -> None:
    health.states["s"] = Health(status)  # type: ignore[arg-type]
    if status == "ready":
        await health.ready("s", 0.0)
    else:
        with pytest.raises(BackendUnavailable, match="loading" if status == "loading" else "reached"):
            await health.ready("s", 0.0)


async def test_a_backend_that_loads_for_the_first_time_is_waited_for(health: BackendHealth) -> None:
    waiting = asyncio.create_task(health.ready("s", monotonic() + 60))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    health.states["s"] = Health("ready")
    await waiting


async def test_a_backend_that_was_ready_waits_for_itself(health: BackendHealth) -> None:
    async def changed() -> None: ...

    await health.start("s", changed)
    assert health.states["s"].status == "loading"  # not checked since
    await health.ready("s", 0.0)


async def test_a_start_that_fails_is_no_longer_waited_for(
    health: BackendHealth, backends: dict[str, ScriptedBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> None:
        raise BackendUnavailable("No such folder.")

    checked = asyncio.Event()

    async def changed() -> None:
        await health.check()
        checked.set()

    monkeypatch.setattr(backends["s"], "start", start)
    starting = asyncio.create_task(health.start("s", changed))
    await checked.wait()
    assert (health.states["s"].status, health.is_starting("s")) == ("failed", False)
    await asyncio.sleep(0)
    assert health.starting == {"t"}
    starting.cancel()


@pytest.mark.parametrize(("new_for", "other", "waits"), [(60, True, True), (0, True, False), (0, False, True)])
async def test_a_request_waits_for_its_first_target(
    health: BackendHealth,
    backends: dict[str, ScriptedBackend],
    targets: tuple[Target, ...],
    monkeypatch: pytest.MonkeyPatch,
    new_for: int,
    other: bool,
    waits: bool,
) -> None:
    """As long as the backend is new, and after that as long as nobody else is ready."""

    async def start() -> None:
        await asyncio.Event().wait()

    async def changed() -> None: ...

    monkeypatch.setattr(module, "_LOADING_TIMEOUT", new_for)
    monkeypatch.setattr(backends["s"], "start", start)
    starting = asyncio.create_task(health.start("s", changed))
    await asyncio.sleep(0)
    monkeypatch.setattr(module, "_LOADING_TIMEOUT", 60)
    if other:
        health.states["t"] = Health("ready")
    waiting = asyncio.create_task(health.decided(targets))
    await asyncio.sleep(0.01)
    assert waiting.done() is not waits
    health.states["s"] = Health("ready")
    assert await waiting > monotonic() + 50
    starting.cancel()


async def test_a_check_says_whether_something_changed(health: BackendHealth) -> None:
    assert await health.check()
    assert not await health.check()


def test_targets_in_trouble_or_loading_come_last_and_stay(
    health: BackendHealth, backends: dict[str, ScriptedBackend], targets: tuple[Target, ...]
) -> None:
    one, other = targets
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


@pytest.mark.parametrize("first", [Health("ready"), Health("ready", "3 failures"), Health("loading"), Health("failed")])
@pytest.mark.parametrize(
    "second", [Health("ready"), Health("ready", "3 failures"), Health("loading"), Health("failed")]
)
def test_the_first_target_is_asked_if_it_can_answer_and_none_is_preferred(
    first: Health, second: Health, health: BackendHealth, targets: tuple[Target, ...]
) -> None:
    one, other = targets
    health.states = {one.entity.backend: first, other.entity.backend: second}
    assert health.is_first((one,)) is (first.status == "ready")
    assert health.is_first((one, other)) is (first.status == "ready" and health.preferred((one, other))[0] is one)
