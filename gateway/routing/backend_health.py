"""Which backends of a worker can answer, as they are started and checked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf
from time import monotonic

import structlog

from backends.base import Backend, Capabilities, Health
from gateway.config import Endpoint
from gateway.errors import to_client_error
from gateway.routing.target import Target
from schemas.errors import BackendUnavailable

log = structlog.get_logger()

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 30.0
"""Seconds before a backend that did not start is started again; doubled each time, up to the longest."""
_LOADING_TIMEOUT, _POLL_INTERVAL = 5.0, 0.05
"""Seconds that a request waits for models that are still loading, and between two looks at them."""
_WELL = Health("ready")
"""What a backend equals that is ready and not in trouble, of which a detail would tell."""


class BackendHealth:
    """The health of each backend, as of the last check.

    Args:
        backends: by name, not started yet.

    Attributes:
        states: of all.
        starting: those whose first start has not ended yet, so that nothing is known of them. The set stays the same.
    """

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = backends
        # "loading" until the first check: a request in the first second waits instead of being refused.
        self.states: dict[str, Health] = dict.fromkeys(backends, Health("loading"))
        self._capabilities: list[Capabilities] = []
        self._failed: dict[str, Health] = {}
        self.starting = set(backends)
        self._awaited_until: dict[str, float] = {}

    def is_ready(self, backend: str) -> bool:
        """Whether a backend can answer now."""
        return self.states[backend].status == "ready"

    def is_well(self, backend: str) -> bool:
        """Whether a backend is ready, and not in trouble: background work must not add to it."""
        return self.states[backend] == _WELL

    def is_starting(self, backend: str) -> bool:
        """Whether a backend still loads for the first time, without an error that is known."""
        return backend in self.starting and self.states[backend].status == "loading"

    async def decided(self, targets: tuple[Target, ...]) -> float:
        """Wait for the first target while its backend loads for the first time: its unit was assigned to it.

        A request that comes in the first moments of a worker, or of a backend, waits even if another target is ready:
        a first check takes a moment, and so does what a worker that has just been restarted needs to answer as its
        siblings do. A model that takes longer than that is waited for only if no other target is ready.

        Args:
            targets: in the order of the plan.

        Returns:
            Until when the request waits for backends that load (`ready`), on the monotonic clock.
        """
        first, *others = (target.entity.backend for target in targets)
        until = monotonic() + _LOADING_TIMEOUT
        # Polled: the state changes a few times in a process's life, which is not worth an event per backend.
        while self.is_starting(first) and (now := monotonic()) < until:
            if now >= self._awaited_until.get(first, inf) and any(self.is_ready(other) for other in others):
                break
            await asyncio.sleep(_POLL_INTERVAL)
        return until

    async def ready(self, backend: str, until: float) -> None:
        """Return once a backend can be asked.

        One that was started before and loads now is asked at once: it waits by itself for the engine that it has lost,
        or says why its server cannot be reached.

        Args:
            backend: its name.
            until: the end of the wait for one that loads for the first time, on the monotonic clock.

        Raises:
            schemas.errors.BackendUnavailable: it cannot answer, yet or any more.
        """
        while self.is_starting(backend):
            if monotonic() >= until:
                raise BackendUnavailable("The model is still loading.", retry_after=1.0)
            await asyncio.sleep(_POLL_INTERVAL)
        if self.states[backend].status == "failed":
            raise BackendUnavailable("The model cannot be reached.")

    def preferred(self, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        """The targets with those moved to the end whose backend is in trouble or still loads."""
        if len(targets) > 1:
            for target in targets:  # the usual case calls, copies and sorts nothing
                if self.states[target.entity.backend] != _WELL:
                    return tuple(sorted(targets, key=self._rank))  # stable: the plan's order stays among equals
        return targets

    def is_first(self, targets: tuple[Target, ...]) -> bool:
        """Whether the first target can answer now, and none of the others is preferred to it."""
        for target in targets:  # as in `preferred`
            if self.states[target.entity.backend] != _WELL:
                return self.is_ready(targets[0].entity.backend) and self.preferred(targets)[0] is targets[0]
        return True

    def of(self, endpoints: Iterable[Endpoint]) -> Health:
        """Ready if every endpoint has a backend that is; else the state of the first backend that is missing."""
        for endpoint in endpoints:
            states = {
                entity.backend: self.states[entity.backend]
                for entity in endpoint.served_entities
                if entity.shadow is None
            }
            if not any(health.status == "ready" for health in states.values()):
                # A backend that loads goes before one that has failed: the endpoint may still become ready.
                name, health = min(states.items(), key=lambda item: item[1].status == "failed")
                return Health(health.status, f"{name}: {health.detail or health.status}")
        return Health("ready")

    async def start(self, name: str, changed: Callable[[], Awaitable[None]]) -> None:
        """Start a backend; if it fails, again after a growing delay. `changed` is called after each try."""
        delay = _FIRST_DELAY
        self._awaited_until[name] = monotonic() + _LOADING_TIMEOUT
        while True:
            try:
                await self._backends[name].start()
            except Exception as error:  # a bug in it, too: or it would stay "loading" for ever
                why = to_client_error(error, f"start of {name}").message
                log.error("backend.failed", backend=name, why=why, again_in=delay)
                self._failed[name] = Health("failed", why)
                # At once and not with the next check, for those who wait for it.
                await changed()
                self.starting.discard(name)
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY)
            else:
                self._failed.pop(name, None)
                await changed()
                self.starting.discard(name)
                return

    async def check(self) -> bool:
        """Check all backends; whether the state of one, or what it can do, has changed."""
        # A backend whose start failed is not asked: its health is that failure until it has started.
        states = {name: self._failed.get(name) or await _healthy(name, each) for name, each in self._backends.items()}
        # `start` has checks made, too, and two checks may overlap: the later one wins, and the next corrects it if it
        # was the older.
        capabilities = [backend.capabilities for backend in self._backends.values()]
        has_changed = states != self.states or capabilities != self._capabilities
        self.states, self._capabilities = states, capabilities
        return has_changed

    def _rank(self, target: Target) -> int:
        """How much others are preferred to a target: 1 if its backend is ready but in trouble, 2 if it still loads.

        One that loads is last since others may answer at once, and waited for once these have failed.
        """
        health = self.states[target.entity.backend]
        return 2 if health.status == "loading" else int(health.status == "ready" and bool(health.detail))


async def _healthy(name: str, backend: Backend) -> Health:
    try:
        return await backend.healthy()
    except Exception as error:  # a bug in it must not end the check of all backends
        return Health("failed", to_client_error(error, f"health of {name}").message)
