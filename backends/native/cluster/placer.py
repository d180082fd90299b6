"""Decides which engines there are: as many as each model's queue needs. Replaces those that end, drains others.

Strategy: once a second every engine is asked for a report, and what should be is compared with what is.

- Gateways ask for a model's engines, and wait for the answer to change (long poll). Each call renews the gateway's
  lease on the model. Engines outlive their last gateway by a while, so that one that is restarted finds them.
- An engine's process is restarted by its actor, at the same address. Here an engine has ended if its actor is gone or
  has given up. Another one is placed: at once if the engine had lasted, else later and later.
- An engine that is to go is no longer listed, so that gateways give it no more requests, and is stopped when it has
  nothing left to do. What it still has when that takes too long goes on at other engines.
- While the cluster's head is away, everything stays as it is.
- Engines are named actors that outlive the placer: the next one asks them what they are (`Nodes.running`).

The placer knows nothing of Ray; `ray_cluster` gives it nodes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog

from backends.autoscaling import Scaling, ScalingState, scale
from backends.native.cluster.placement import EngineStatus, ModelSpec, ModelStatus, Report, listing
from backends.process import BackOff

log = structlog.get_logger()

_BACK_OFF = BackOff(first=0.0, step=1.0, longest=60.0, forgiven_after=60.0)


class EngineGone(Exception):
    """An engine's actor has ended; the text says why."""


class PlacedEngine(Protocol):
    """An engine on some node."""

    async def spec(self) -> ModelSpec:
        """What it runs. Raises `EngineGone`."""
        ...

    async def report(self) -> Report:
        """What is known of it; takes as long as its node needs, or for ever. Raises `EngineGone`."""
        ...

    async def stop(self) -> None:
        """End it, after its present step."""
        ...


class Nodes(Protocol):
    """Where engines can be placed."""

    def start(self, name: str, spec: ModelSpec) -> PlacedEngine:
        """Place an engine, on a node that has what it takes, once there is one."""
        ...

    def running(self) -> Mapping[str, PlacedEngine]:
        """The engines that an earlier placer has started, by name."""
        ...

    async def reachable(self) -> bool:
        """Whether the cluster's head answers: without it no gateway may be able to ask, and nothing can be placed."""
        ...


class Times(msgspec.Struct, frozen=True):
    """Seconds.

    Attributes:
        tick: between two looks at the engines.
        poll: for which a gateway waits for a change; then it asks again.
        lease: for which engines outlive the last call of a gateway.
        notice: for which an engine that is not listed any more may be given requests all the same.
        drain: after which an engine that leaves is stopped although it has something to do.
    """

    tick: float = 1.0
    poll: float = 10.0
    lease: float = 60.0
    notice: float = 5.0
    drain: float = 300.0


@dataclass(slots=True, eq=False)
class _Replica:
    """An engine: its latest report, the call for the next one, and since when it leaves."""

    engine: PlacedEngine
    started: float
    report: Report | None = None
    call: asyncio.Task[Report] | None = None
    silent: bool = False
    leaving_since: float | None = None

    @property
    def load(self) -> tuple[bool, int]:
        """Whether it is ready, and its sequences: the least of all leaves first."""
        if self.report is None or self.report.state != "ready":
            return False, 0
        return True, self.report.running + self.report.waiting

    @property
    def is_listed(self) -> bool:
        """Whether gateways should use it."""
        return self.leaving_since is None and self.report is not None and bool(self.report.address)


class _Lease(NamedTuple):
    """Until when a gateway wants engines, how many, and its sequences that wait for one while there is none."""

    until: float
    scaling: Scaling
    waiting: int = 0


@dataclass(slots=True, eq=False)
class _Fleet:
    """The engines of a model. `listed` None: nothing is known yet. `wait_until`: when the next one may be started."""

    spec: ModelSpec
    replicas: dict[str, _Replica] = field(default_factory=dict)
    leases: dict[str, _Lease] = field(default_factory=dict)
    target: int = 0
    state: ScalingState = field(default_factory=ScalingState)
    listed: bytes | None = None
    delay: float = 0.0
    wait_until: float = 0.0
    last_failure: str = ""

    @property
    def staying(self) -> list[_Replica]:
        return [each for each in self.replicas.values() if each.leaving_since is None]

    @property
    def scaling(self) -> Scaling | None:
        """What all gateways together want; None: nobody wants any engine."""
        wanted = [lease.scaling for lease in self.leases.values()]
        if not wanted:
            return None
        return msgspec.structs.replace(
            wanted[-1], min=max(each.min for each in wanted), max=max(each.max for each in wanted)
        )

    @property
    def waiting(self) -> int:
        """Sequences that wait for an engine at the gateways."""
        return sum(lease.waiting for lease in self.leases.values())


class Placer:
    """Keeps the engines of all models.

    Args:
        nodes: where engines can be placed.
        times: how often, and how long.
        clock: seconds that never go back.
    """

    def __init__(self, nodes: Nodes, times: Times = Times(), clock: Callable[[], float] = time.monotonic) -> None:  # noqa: B008 - frozen
        self._nodes = nodes
        self._times = times
        self._clock = clock
        self._fleets: dict[str, _Fleet] = {}
        self._ticked = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def engines(self, gateway: str, spec: ModelSpec, seen: bytes, waiting: int = 0) -> bytes:
        """The listing of a model's engines once it is another one than `seen`, or after a while.

        Args:
            gateway: its name.
            spec: the model.
            seen: the listing that the gateway has.
            waiting: sequences that wait for an engine there.
        """
        if spec.key not in self._fleets:
            self._fleets[spec.key] = _Fleet(spec)
        fleet = self._fleets[spec.key]
        fleet.leases.pop(gateway, None)  # the latest lease is the last one
        fleet.leases[gateway] = _Lease(self._clock() + self._times.lease, spec.scaling, waiting)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.poll), self._ticked:
                await self._ticked.wait_for(lambda: fleet.listed not in (None, seen))
        return fleet.listed if fleet.listed is not None else seen

    def status(self) -> list[ModelStatus]:
        """What is known of all models."""
        return [
            ModelStatus(
                fleet.spec.name,
                fleet.spec.options.model,
                sum(map(bool, fleet.leases)),
                fleet.target,
                fleet.scaling or fleet.spec.scaling,
                tuple(
                    EngineStatus(name, each.report, each.leaving_since is not None, each.silent)
                    for name, each in fleet.replicas.items()
                ),
                fleet.last_failure,
                fleet.waiting,
            )
            for fleet in self._fleets.values()
        ]

    async def run(self) -> None:
        """Keep the engines until no gateway has wanted any for a while."""
        await self._adopt()
        idle_since = self._clock()
        while self._fleets or self._clock() - idle_since < self._times.lease:
            await self.tick()
            if self._fleets:
                idle_since = self._clock()
            await asyncio.sleep(self._times.tick)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def tick(self) -> None:
        """Compare what should be with what is, once."""
        await asyncio.gather(*map(self._look, [*self._fleets.values()]))
        now = self._clock()
        if not await self._nodes.reachable():
            # Nothing is stopped for want of a gateway that has lost its way here.
            for fleet in self._fleets.values():
                fleet.leases = {
                    name: lease._replace(until=now + self._times.lease) for name, lease in fleet.leases.items()
                }
            return
        for key, fleet in [*self._fleets.items()]:
            fleet.leases = {name: lease for name, lease in fleet.leases.items() if lease.until > now}
            self._scale(fleet, now)
            self._drain(fleet, now)
            fleet.listed = listing([each.report for each in fleet.staying if each.is_listed and each.report])
            if not fleet.replicas and not fleet.leases:
                del self._fleets[key]
        async with self._ticked:
            self._ticked.notify_all()

    async def _adopt(self) -> None:
        """Take over the engines of an earlier placer. One that does not say what it is, is ended."""
        now = self._clock()
        for name, engine in self._nodes.running().items():
            try:
                async with asyncio.timeout(self._times.poll):
                    spec = await engine.spec()
            except (TimeoutError, EngineGone):
                self._later(engine.stop())
                continue
            fleet = self._fleets.setdefault(spec.key, _Fleet(spec))
            fleet.replicas[name] = _Replica(engine, now)
            fleet.target = len(fleet.replicas)
            # Until its gateways ask again.
            fleet.leases.setdefault("", _Lease(now + self._times.lease, spec.scaling))

    async def _look(self, fleet: _Fleet) -> None:
        """Ask all engines for reports, and forget those that have ended."""
        for each in fleet.replicas.values():
            # A call may wait for a node for hours: there is one at a time.
            each.call = each.call or asyncio.ensure_future(each.engine.report())
        calls = [each.call for each in fleet.replicas.values() if each.call is not None]
        if calls:
            await asyncio.wait(calls, timeout=self._times.tick)
        for name, each in [*fleet.replicas.items()]:
            if (call := each.call) is None or not call.done():
                each.silent = each.report is not None
                continue
            each.call, each.silent = None, False
            try:
                each.report = call.result()
            except EngineGone as error:
                self._lose(fleet, name, str(error))
            else:
                if each.report.state == "failed":
                    self._lose(fleet, name, each.report.detail)
                    self._later(each.engine.stop())

    def _lose(self, fleet: _Fleet, name: str, why: str) -> None:
        """Forget an engine that has ended, and wait before the next one if it has not lasted."""
        gone, now = fleet.replicas.pop(name), self._clock()
        if gone.leaving_since is not None:
            return
        if now - gone.started > _BACK_OFF.forgiven_after:
            fleet.delay = _BACK_OFF.first
        fleet.wait_until, fleet.last_failure = max(fleet.wait_until, now + fleet.delay), why
        log.error("engine.ended", model=fleet.spec.name, engine=name, why=why, next_in=fleet.delay)
        fleet.delay = _BACK_OFF.after(fleet.delay)

    def _scale(self, fleet: _Fleet, now: float) -> None:
        """Start engines, or have some leave."""
        before = fleet.target
        if (scaling := fleet.scaling) is None:
            fleet.target = 0
        else:
            queue = fleet.waiting + sum(each.load[1] for each in fleet.replicas.values())
            fleet.target, fleet.state = scale(scaling, fleet.state, queue, fleet.target, now)
        if fleet.target != before:
            log.info("model.scaled", model=fleet.spec.name, before=before, engines=fleet.target)
        excess = len(fleet.staying) - fleet.target
        for each in sorted(fleet.staying, key=lambda each: each.load)[: max(0, excess)]:
            each.leaving_since = now
        # One that leaves is loaded already.
        for each in sorted(fleet.replicas.values(), key=lambda each: each.load, reverse=True):
            if excess < 0 and each.leaving_since is not None:
                each.leaving_since = None
                excess += 1
        if now >= fleet.wait_until:
            for _ in range(-excess):
                name = f"{fleet.spec.key}-{secrets.token_hex(4)}"
                fleet.replicas[name] = _Replica(self._nodes.start(name, fleet.spec), now)

    def _drain(self, fleet: _Fleet, now: float) -> None:
        """Stop the engines that leave and have nothing left to do."""
        for name, each in [*fleet.replicas.items()]:
            if each.leaving_since is None:
                continue
            since = now - each.leaving_since
            is_ready, load = each.load
            if not is_ready or (not load and since >= self._times.notice) or since >= self._times.drain:
                del fleet.replicas[name]
                log.info("engine.stopped", model=fleet.spec.name, engine=name, unfinished=load)
                self._later(each.engine.stop())

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the ticks."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
