"""The state that all requests of a worker share: backends, router, limits, keys, metrics, experiments, catalog."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import structlog

from backends.base import Backend, Health, WaitsForEngine
from gateway.access.keys import Keys
from gateway.access.keys_file import Key
from gateway.access.limits import Limiter, Ticket
from gateway.access.local_limiter import LocalLimiter, limits_file
from gateway.access.rules import RuleTable, estimated_tokens
from gateway.access.shared_limiter import SharedLimiter
from gateway.changes import Changes
from gateway.config import Config, Endpoint
from gateway.deferred import DeferredSteps
from gateway.deployment.catalog import catalog
from gateway.deployment.change_log import ChangeLog
from gateway.deployment.deployments import generating, mixed_kinds
from gateway.deployment.endpoint_counts import EndpointCounts
from gateway.deployment.state_file import LiveDeployments
from gateway.experiments.experiments import Experiments, figures_folder
from gateway.export.rows import Exporter
from gateway.filters.guarded import NONE, GuardedFilter
from gateway.observability.live import LiveFigures
from gateway.observability.logging import EVENTS
from gateway.observability.metrics import Metrics
from gateway.observability.request_log import RequestLog
from gateway.observability.traces import Traces
from gateway.rollout.ramps import Ramps
from gateway.rollout.timeline import Timeline
from gateway.routing.backend_health import BackendHealth
from gateway.routing.router import Router
from gateway.routing.shares import Shares
from gateway.routing.target import Plan
from gateway.shared import Shared
from gateway.storage.answer_cache import in_memory
from gateway.storage.decoded_requests import DecodedRequests
from gateway.storage.key_stores import Stores
from gateway.storage.objects.run_tasks import RunTasks
from gateway.ticks import next_tick
from gateway.usage.ledger import Ledger
from schemas.catalog import Catalog, Change
from schemas.errors import BackendUnavailable, Forbidden
from schemas.ir import Embed, Generate, Request

log = structlog.get_logger()

_HEALTH_INTERVAL = 0.25
"""Seconds between two checks: how late `/health/ready` tells of a lost engine, and a worker learns of a stop by a
guardrail elsewhere."""
_IDS = 64
"""Ids of requests that are made at once: the kernel's generator takes a call for each, of 0.9 µs."""
_ENDED = 0.005
"""Seconds for which the log lines and metrics of requests that have ended wait for those of others."""
_POLL_INTERVAL = 0.05
"""Seconds between two looks at a worker that starts."""


class Service:
    """One worker's state.

    Args:
        config: the whole configuration.
        backends: by name, not started yet.
        keys: who may ask.
        folder: where workers share counters, feedback and stored responses; None for a worker alone.
        slot: this worker's place in `folder`, which it takes over from one that ended; None: a new one.
        filters: by name.
    """

    def __init__(
        self,
        config: Config,
        backends: Mapping[str, Backend],
        keys: Keys,
        folder: Path | None = None,
        slot: str | None = None,
        filters: Mapping[str, GuardedFilter] = NONE,
    ) -> None:
        self.config = config
        self._filters = filters
        self.backends = backends
        self.keys = keys
        self.limits = config.server.limits
        # Without a state server nothing of it is made, and nothing is asked.
        self.shared = Shared(config, folder) if config.state is not None else None
        folder = self.shared.folder if self.shared is not None else folder
        self.draining = False
        self.running = 0
        self.begun = 0
        self.shares = Shares(self.limits.max_concurrent_requests) if keys.several else None
        local = LocalLimiter(limits_file(config.server, folder), folder)
        self.limiter: Limiter = SharedLimiter(self.shared.server, local) if self.shared is not None else local
        self._created = int(time.time())
        self.stores = Stores(config.server, folder, self.shared.server if self.shared is not None else None)
        self.runs = RunTasks(self.stores)
        slot = slot or secrets.token_hex(8)
        self.metrics = Metrics(backends, folder / "metrics" if folder is not None else None, slot)
        self.live = LiveFigures(self.metrics, backends)
        self.requests = RequestLog(folder / "requests" if folder is not None else None, slot)
        self.traces: Traces | None = None
        self.exporter = Exporter.of(config.server.export, lambda rows: self.metrics.export_lost.add((), rows))
        self.usage = Ledger.of(config, lambda records: self.metrics.usage_lost.add((), records))
        self.keeps_texts = any(each is not None and each.with_text for each in (self.exporter, self.usage))
        self.counts = EndpointCounts()
        self.after_turn = DeferredSteps()
        self.ended = DeferredSteps(_ENDED, EVENTS.begin_batch, EVENTS.end_batch)
        self._ids: list[str] = []  # of requests to come
        self.backend_health = BackendHealth(backends)
        self._said = ""  # of what the last look failed with
        self._behind = ""  # why what is deployed by now is not served yet
        self._tasks: list[asyncio.Task[None]] = []
        self._live = LiveDeployments(config, self.shared.endpoints if self.shared is not None else None)
        figures = figures_folder(config, folder)
        self.experiments = Experiments(self.metrics, self.backend_health.is_well, keys, self._stop_arms, figures)
        self.timeline = Timeline(figures)
        self.ramps = Ramps(self._live, self.experiments, self.backend_health.is_well)
        self.is_changeable = config.is_changeable
        log_of_changes = ChangeLog(config.server.state_file)
        self.changes = Changes(self._live, self.experiments, log_of_changes, self.refresh, self.shared)
        self._serve()  # last: it uses all of the above

    @property
    def full(self) -> bool:
        """Whether one more request would be too many."""
        return self.running > self.limits.max_concurrent_requests  # the request that asks is counted already

    @property
    def health(self) -> Health:
        """Ready if every endpoint has a backend that is; else the state of the first backend that is missing."""
        if self.draining:
            return Health("failed", "shutting down")
        # A new endpoint whose first configuration is pending must not make the whole server unready.
        in_force = [deployed.endpoint for deployed in self._live.deployments.values() if deployed.endpoint is not None]
        return self.backend_health.of(in_force)

    def refresh(self) -> None:
        """Serve what is deployed by now. Called before every request, so that a change that one worker has confirmed is
        known to all. Requests in flight keep their plan and experiment.

        What was served before stays in force if that fails (a disk that is full), until a later look succeeds.
        """
        # Without a state file nothing can change, and not even the `stat` is paid for.
        if self.is_changeable and self._live.refresh():
            self._catch_up()

    async def limit(self, key: Key | None, plan: Plan, request: Request) -> Ticket | None:
        """Count a request for the limits of its key, its endpoint and its user; None if it has no limits.

        Raises:
            schemas.errors.Forbidden: the key may not ask the endpoint.
            schemas.errors.RateLimited: a limit is reached.
        """
        endpoint = plan.targets[0].endpoint
        if key is not None and not key.may_ask(endpoint):
            raise Forbidden(f"This key may not ask the endpoint '{endpoint}'.")
        user = request.user if isinstance(request, Generate | Embed) else None
        rules = self.rules.of(key, endpoint, user)
        if rules is None:
            return None
        return await self.limiter.enter(rules, estimated_tokens(request) if rules.by_tokens else 0)

    async def manage(self, change: Change, by: str = "") -> None:
        """Change what is deployed, for all workers; see `Changes.manage`.

        Raises:
            schemas.errors.BackendUnavailable: the change is made, and this worker cannot serve it yet.
        """
        await self.changes.manage(change, by, self.backend_health.states, generating(self.backends))
        if self._behind:
            raise BackendUnavailable("The change is stored, but cannot be served yet; the log says why.")

    def deployed(self, endpoint: str) -> Endpoint:
        """An endpoint of the catalog as it is served now."""
        return self._live.deployments[endpoint].serving

    def ledger_of(self, endpoint: str) -> Ledger | None:
        """What keeps the records of an endpoint's requests; None if nothing does."""
        return None if endpoint in self._untracked else self.usage

    def new_id(self) -> str:
        """A new id of a request, which also names what is stored of it: 128 random bits as hexadecimal digits.

        An id has no structure: it says nothing about other ids, and knowing one does not help to guess another. Whoever
        must find something by an id stores the id, or a digest of it, with the key that may ask.
        """
        if not self._ids:
            made = os.urandom(16 * _IDS).hex()
            self._ids = [made[at : at + 32] for at in range(0, len(made), 32)]
        return self._ids.pop()

    def refused(self, reason: str) -> str:
        """Count a request that no handler sees, by its status or another reason; returns its request id."""
        self.metrics.refused.add((reason,))
        return self.new_id()

    async def start(self) -> None:
        """Start the backends concurrently; returns before they are ready."""
        if self.usage is not None:
            self.usage.start()
        if self.shared is not None:
            self.shared.start(self.experiments, self.refresh)
        self.metrics.note_health(self.backend_health.states)
        self._tasks = [asyncio.create_task(self.backend_health.start(name, self._look)) for name in self.backends]
        self._tasks.append(asyncio.create_task(self._watch()))

    def orphan(self) -> None:
        """Learn that the supervisor is gone: no engine is started again, and `settled` waits for none."""
        self.draining = True
        for backend in self.backends.values():
            if isinstance(backend, WaitsForEngine):
                backend.expect_no_engine()

    async def settled(self) -> None:
        """Wait until every endpoint has a backend that is ready.

        Raises:
            schemas.errors.BackendUnavailable: a backend failed.
        """
        # "failed" ends this, too: a new generation of workers with a broken backend is given up (`Supervisor`).
        while self.health.status == "loading":  # noqa: ASYNC110 - polled once, at startup
            await asyncio.sleep(_POLL_INTERVAL)
        if self.health.status == "failed":
            raise BackendUnavailable(self.health.detail)

    async def aclose(self) -> None:
        """Stop everything, whatever fails on the way; the last error is raised then."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self.after_turn.make()
        self.ended.make()
        # A stack closes the last one first: background work, then the backends that it uses, and last the stores.
        async with AsyncExitStack() as closing:
            closing.callback(self.metrics.close)
            if self.shared is not None:
                closing.push_async_callback(self.shared.aclose)
            closing.push_async_callback(self.limiter.aclose)
            closing.callback(self.stores.close)
            if self.usage is not None:
                closing.push_async_callback(asyncio.to_thread, self.usage.close)
            if self.exporter is not None:
                closing.push_async_callback(asyncio.to_thread, self.exporter.close)
            for backend in self.backends.values():
                closing.push_async_callback(backend.aclose)
            closing.push_async_callback(self.experiments.aclose)
            closing.push_async_callback(self.runs.aclose)

    async def _watch(self) -> None:
        time = asyncio.get_running_loop().time
        while True:
            await self._look()
            await asyncio.sleep(next_tick(now := time(), _HEALTH_INTERVAL) - now)

    async def _look(self) -> None:
        """Check the backends, and note the figures of the moment."""
        try:
            await self._check_health()
            if self.live.look(self.backend_health.states, self._live.backend_of):
                self.metrics.tasks.set(len(asyncio.all_tasks()))
            self.timeline.look(self._live.deployments, self.experiments)
        # No descriptor left, a disk that fails, or a bug: without further looks, health would stay as it is for ever.
        except Exception as error:
            if (said := repr(error)) != self._said:  # not again and again
                self._said = said
                log.error("service.not_checked", error=said)
        else:
            self._said = ""

    async def _check_health(self) -> None:
        # An update comes into force one check late at most. `_stop_arms` reads what guardrails of all workers stopped.
        await self._live.settle(self.backend_health.states)
        self.refresh()
        if self._behind:
            self._catch_up()
        self._stop_arms()
        if self.is_changeable and await self.ramps.move():
            self.refresh()
        # The catalog is made anew only when a state, or what a backend can do, has changed.
        if await self.backend_health.check():
            self.metrics.note_health(self.backend_health.states)
            self.catalog = self._catalog()
            self._warn_of_mixed_arms()

    def _catch_up(self) -> None:
        """Serve what is deployed; note and log why, if that fails."""
        try:
            self._serve()
        except Exception as error:  # no request is answered worse for it
            if (why := repr(error)) != self._behind:  # not again and again
                log.error("state.not_served", error=why)
            self._behind = why
        else:
            self._behind = ""

    def _serve(self) -> None:
        """Route to what is deployed. An experiment whose endpoint is unchanged goes on."""
        # No `await` in here: no request sees new routes with old experiments. Experiments come first, since a plan of
        # the new router looks its experiment up.
        deployments = self._live.deployments
        resets = self._live.resets
        self.experiments.serve(
            {name: (found.serving, found.version, resets.get(name, 0)) for name, found in deployments.items()}
        )
        endpoints = {name: found.serving for name, found in deployments.items()}
        answers = self.shared.answers if self.shared is not None else in_memory
        self.router = Router(endpoints, self.backends, self._filters, answers, self.backend_health.starting)
        self.rules = RuleTable({name: found.serving.limits for name, found in deployments.items()})
        # Only what a cache answers is worth keeping.
        has_cache = any(found.serving.cache is not None for found in deployments.values())
        self.decoded = DecodedRequests() if has_cache else None
        self._untracked = {name for name, found in deployments.items() if found.serving.usage_tracking is False}
        self._stop_arms()
        self.metrics.name_engines({name: found.serving.served_entities for name, found in deployments.items()})
        self.counts.keep(deployments.keys())
        self.catalog = self._catalog()

    def _warn_of_mixed_arms(self) -> None:
        # What some backends make is known only once they are loaded, too late to refuse the configuration.
        for name, deployed in self._live.deployments.items():
            if why := mixed_kinds(deployed.serving, generating(self.backends)):
                log.warning("arms.mixed", model=name, why=why.removeprefix(": "))

    def _stop_arms(self) -> None:
        self.router.stop(self.experiments.stopped())

    def _catalog(self) -> Catalog:
        limit = self.limits.max_concurrent_requests
        default = self.config.server.default
        return catalog(self._live.deployments, self.backends, self.backend_health.states, self._created, limit, default)
