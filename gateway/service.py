"""What all requests of a worker share: backends, router, limits, keys, metrics, and the catalog of what is served."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgspec
import structlog

from backends.base import Backend, Health
from gateway.auth import Keys
from gateway.config import Config
from gateway.deployment.catalog import catalog
from gateway.deployment.state_file import Live
from gateway.errors import to_client_error
from gateway.experiments.experiment import Experiment, Outcome, key
from gateway.experiments.feedback_ring import Answered, FeedbackRing
from gateway.experiments.paired import Pairing
from gateway.experiments.shadow import Shadows
from gateway.observability.metrics import Metrics
from gateway.response_store import RecordStore
from gateway.routing.router import Plan, Router, Target
from schemas.catalog import Catalog, Change, RequestCounts
from schemas.errors import BackendUnavailable, InvalidRequest
from schemas.ir import Events, Generate, Request

log = structlog.get_logger()

_HEALTH_INTERVAL = 1.0
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 30.0
"""Seconds before a backend that did not start is tried again; each time twice as many."""
_PATIENCE, _STEP = 5.0, 0.05
"""Seconds that a request waits for a model that is still loading, and between looks."""


class Service:
    """One worker's state.

    Args:
        config: the whole configuration.
        backends: by name, not started yet.
        keys: who may ask.
        folder: where workers share the figures of experiments; None for a worker alone.
        slot: this worker's place there, which it takes over from one that ended; None: a place of its own.
    """

    def __init__(
        self,
        config: Config,
        backends: Mapping[str, Backend],
        keys: Keys,
        folder: Path | None = None,
        slot: str | None = None,
    ) -> None:
        self.config = config
        self.backends = backends
        self.keys = keys
        self.limits = config.server.limits
        self.draining = False
        self.running = 0
        self._created = int(time.time())
        self._prefix = secrets.token_hex(8)
        self._numbers = count()
        self._folder = folder
        room = config.server.limits.stored_responses
        self.records = RecordStore(room, folder / "responses" if folder is not None else None) if room else None
        self._slot = slot or self._prefix
        self.metrics = Metrics(backends, folder / "metrics" if folder is not None else None, self._slot)
        self._feedback = FeedbackRing(self._prefix, folder / "requests" if folder is not None else None, self._slot)
        self._counts: dict[str, RequestCounts] = {}
        self._health: dict[str, Health] = dict.fromkeys(backends, Health("loading"))
        self._failed: dict[str, Health] = {}
        self._started: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._shadows = Shadows(self.metrics, self._can_answer)
        self._pairing = Pairing(self.metrics, self._can_answer)
        self.experiments: dict[str, Experiment] = {}
        self._live = Live(config)
        self._serve()

    @property
    def full(self) -> bool:
        """Whether one more request would be too many."""
        return self.running > self.limits.max_concurrent_requests

    @property
    def health(self) -> Health:
        """Whether every endpoint has somebody to answer; else the state of those it waits for."""
        if self.draining:
            return Health("failed", "shutting down")
        in_force = [deployed.endpoint for deployed in self._live.deployments.values() if deployed.endpoint is not None]
        for endpoint in in_force:
            states = {
                entity.backend: self._health[entity.backend]
                for entity in endpoint.served_entities
                if entity.shadow is None
            }
            if not any(health.status == "ready" for health in states.values()):
                name, health = min(states.items(), key=lambda item: item[1].status == "failed")
                return Health(health.status, f"{name}: {health.detail or health.status}")
        return Health("ready")

    async def ready(self, backend: str, *, patient: bool) -> None:
        """Let a request pass whose backend can answer, now or, if `patient`, in a moment: a worker that has just been
        started again should not refuse what its siblings would have answered. A backend that was ready before waits
        itself for what it has lost, as long as it is told to.

        Raises:
            schemas.errors.BackendUnavailable: it cannot, yet or any more.
        """
        if patient and backend in self._started and self._health[backend].status == "loading":
            return
        patience = _PATIENCE if patient else 0.0
        while self._health[backend].status == "loading" and patience > 0:
            await asyncio.sleep(_STEP)
            patience -= _STEP
        health = self._health[backend]
        if health.status == "loading":
            raise BackendUnavailable("The model is still loading.", retry_after=1.0)
        if health.status == "failed":
            raise BackendUnavailable("The model cannot be reached.")

    def preferred(self, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        """Targets in the order in which to ask them: those of backends in trouble come last, and are left in."""
        if len(targets) == 1 or not any(map(self._in_trouble, targets)):
            return targets
        return tuple(sorted(targets, key=self._in_trouble))

    def refresh(self) -> None:
        """Serve what is deployed by now. Looked at before every request: once one worker has said that an endpoint was
        changed, all of them know. What requests in flight hold stays as it is.
        """
        if self._live.refresh():
            self._serve()

    async def manage(self, change: Change) -> None:
        """Change what is deployed, here and on all workers.

        Raises:
            schemas.errors.RequestError: it cannot be done.
        """
        await self._live.change(change, self._health)
        self.refresh()
        log.info("endpoint.changed", model=change.endpoint, action=change.action)

    def plan(self, request: Request, headers: Mapping[str, str]) -> tuple[Plan, Experiment]:
        """Where a request goes, and where it counts; counts its exposure, and sends the copies for shadows.

        Raises:
            schemas.errors.ModelNotFound: nowhere.
        """
        plan = self.router.plan(request, headers)
        experiment = self.experiments[plan.targets[0].endpoint]
        experiment.exposed(plan)
        if plan.shadows and isinstance(request, Generate) and not self.draining:
            self._shadows.send(request, plan.shadows, experiment)
        return plan, experiment

    def generate(
        self, request: Generate, target: Target, plan: Plan, experiment: Experiment
    ) -> AsyncGenerator[Events, None]:
        """Have a target answer; what it says may be compared, later, with what others would have said.

        Raises:
            schemas.errors.ModelNotFound: it has no such adapter.
        """
        events = target.backend.generate(target.addressed(request))
        return events if self.draining else self._pairing.follow(events, request, plan, target, experiment)

    def ended(self, id: str, experiment: Experiment, plan: Plan, last: Target, ended: Outcome) -> None:
        """A request ended that had been planned; remembers who answered if feedback may come."""
        if (answered := experiment.ended(plan, last, ended)) is not None:
            self._feedback.note(id, Answered(experiment.tag, *answered))

    def feedback(self, id: str, metric: str, value: float) -> None:
        """Count a user's own figure for an answer; of several, the last.

        Raises:
            schemas.errors.InvalidRequest: no such answer is remembered, or its endpoint has no such metric.
        """
        self.refresh()
        by_tag = {experiment.tag: experiment for experiment in self.experiments.values()}
        answered = self._feedback.find(id)
        if answered is None or (experiment := by_tag.get(answered.experiment)) is None:
            raise InvalidRequest("No answer with this id is remembered that could be compared.", param="request_id")
        number = experiment.metric(metric)
        before = self._feedback.replace(id, number, value)
        experiment.feedback(answered.arm, answered.bucket, number, value, before)

    def new_id(self) -> str:
        """A request id nobody else has."""
        return f"{self._prefix}{next(self._numbers):08x}"

    def count(self, endpoint: str, seconds: float, ok: bool) -> None:
        """Note an ended request, for Triton's statistics."""
        old, ns = self._counts.get(endpoint, RequestCounts()), int(seconds * 1e9)
        now = int(time.time() * 1000)
        self._counts[endpoint] = (
            RequestCounts(old.succeeded + 1, old.succeeded_ns + ns, old.failed, old.failed_ns, now)
            if ok
            else RequestCounts(old.succeeded, old.succeeded_ns, old.failed + 1, old.failed_ns + ns, now)
        )

    def counted_catalog(self) -> Catalog:
        """The catalog with each endpoint's counts, for listings."""
        cards = {
            name: msgspec.structs.replace(card, counts=self._counts.get(name, RequestCounts()))
            for name, card in self.catalog.cards.items()
        }
        return msgspec.structs.replace(self.catalog, cards=cards)

    async def start(self) -> None:
        """Start the backends, each by itself: what is ready answers, what is not says so."""
        self._tasks = [asyncio.create_task(self._start(name, backend)) for name, backend in self.backends.items()]
        self._tasks.append(asyncio.create_task(self._watch()))

    async def settled(self) -> None:
        """Wait until every endpoint has somebody to answer.

        Raises:
            schemas.errors.BackendUnavailable: one will not.
        """
        while self.health.status == "loading":  # noqa: ASYNC110 - it is looked at, and by nobody else waited for
            await asyncio.sleep(_STEP)
        if self.health.status == "failed":
            raise BackendUnavailable(self.health.detail)

    async def aclose(self) -> None:
        """Stop everything."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self._shadows.aclose()
        await self._pairing.aclose()
        for backend in self.backends.values():
            await backend.aclose()
        if self.records is not None:
            self.records.close()
        self.metrics.close()

    def _can_answer(self, backend: str) -> bool:
        """Ready, and no others are to be preferred."""
        return self._health[backend] == Health("ready")

    def _in_trouble(self, target: Target) -> bool:
        health = self._health[target.entity.backend]
        return health.status == "ready" and bool(health.detail)

    async def _start(self, name: str, backend: Backend) -> None:
        """Start a backend, however often it takes."""
        delay = _FIRST_DELAY
        while True:
            try:
                await backend.start()
            except Exception as error:  # a bug of its own, too, must not leave it loading for ever
                why = to_client_error(error, f"start of {name}").message
                log.error("backend.failed", backend=name, why=why, again_in=delay)
                self._failed[name] = Health("failed", why)
                await self._look()
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY)
            else:
                self._failed.pop(name, None)
                self._started.add(name)
                await self._look()
                return

    async def _watch(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(_HEALTH_INTERVAL)

    async def _look(self) -> None:
        await self._live.settle(self._health)
        self.refresh()
        self.router.stop({name: experiment.stopped() for name, experiment in self.experiments.items()})
        looked = {name: self._failed.get(name) or await _healthy(name, each) for name, each in self.backends.items()}
        if looked != self._health:
            self._health = looked
            self.catalog = self._catalog()

    def _serve(self) -> None:
        """Route to what is deployed. An experiment whose endpoint is as it was goes on."""
        endpoints = {name: found.serving for name, found in self._live.deployments.items()}
        running = {experiment.key: experiment for experiment in self.experiments.values()}
        self.experiments = {name: self._experiment(name, running) for name in endpoints}
        for experiment in running.values():
            experiment.close()
        self.router = Router(endpoints, self.backends)
        self.router.stop({name: experiment.stopped() for name, experiment in self.experiments.items()})
        self._counts = {name: counts for name, counts in self._counts.items() if name in endpoints}
        self.catalog = self._catalog()

    def _experiment(self, name: str, running: dict[str, Experiment]) -> Experiment:
        deployed = self._live.deployments[name]
        found = running.pop(key(name, deployed.serving, deployed.since), None)
        return found or Experiment(name, deployed.serving, self._folder, self._slot, deployed.since)

    def _catalog(self) -> Catalog:
        limit = self.limits.max_concurrent_requests
        return catalog(self._live.deployments, self.backends, self._health, self._created, limit)


async def _healthy(name: str, backend: Backend) -> Health:
    try:
        return await backend.healthy()
    except Exception as error:  # as in `Service._start`: or nobody would look at any backend again
        return Health("failed", to_client_error(error, f"health of {name}").message)
