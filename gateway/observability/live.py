"""The figures of the last quarter of an hour, for the console: rates, quantiles and states, every few seconds.

A point is what all workers have counted since the point before. Each worker makes the points for itself, from the files
that all of them write, so that a tab gets the same curves from any worker.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from backends.base import Backend, EngineState, Health, RunsEngine
from gateway.observability.metrics import SECONDS, TOKEN_SECONDS, Metrics
from gateway.observability.series_file import Labels, Totals

BackendOf = Callable[[], Mapping[tuple[str, ...], str]]
INTERVAL = 3.0
"""Seconds between two points."""
_KEPT = int(900 / INTERVAL)


class Figures(msgspec.Struct, frozen=True):
    """What an arm, an endpoint, a backend or all of them did in the time of a point. Null: nothing to say it by.

    Attributes:
        requests: a second.
        errors: a second.
        kinds: errors a second, by kind.
        tokens: generated, a second.
        first_token, between_tokens: seconds; medians and 95th percentiles.
    """

    requests: float
    errors: float
    kinds: dict[str, float]
    tokens: float
    first_token: tuple[float, float] | None
    between_tokens: tuple[float, float] | None


class EngineFigures(msgspec.Struct, frozen=True):
    """A native engine: sequences, share of the KV cache in use, share of looked-up tokens that the prefix cache had."""

    running: int
    waiting: int
    kv_usage: float
    prefix_hits: float | None
    preemptions: int
    resident_bytes: int


class BackendState(msgspec.Struct, frozen=True):
    """A backend as this worker sees it. `retries` and `failures` are of the time of the point, `attempts` too."""

    status: str
    detail: str
    attempts: int
    failures: dict[str, int]
    retries: int


class LivePoint(msgspec.Struct, frozen=True):
    """The figures of one point.

    Attributes:
        time: Unix time in seconds.
        running: requests of all workers.
        series: by endpoint, or endpoint and arm joined by ":"; "" is all.
        by_backend: by the backend's name, of all arms that it answers for.
        errors: a second, by kind, also of requests that reached no arm.
        engines: by backend.
        backends: by name.
    """

    time: float
    running: int
    series: dict[str, Figures]
    by_backend: dict[str, Figures]
    errors: dict[str, float]
    engines: dict[str, EngineFigures]
    backends: dict[str, BackendState]


class _Counted(NamedTuple):
    """What was counted in the `past` seconds of a point, by the labels of each metric: endpoint and arm come first."""

    past: float
    outcomes: Mapping[Labels, Sequence[float]]
    tokens: Mapping[Labels, Sequence[float]]
    first_token: Mapping[Labels, Sequence[float]]
    between_tokens: Mapping[Labels, Sequence[float]]

    def of(self, arms: Iterable[tuple[str, ...]]) -> Figures:
        """The figures of these arms together."""
        chosen = frozenset(arms)
        kinds: dict[str, float] = {}
        for labels, (count, *_) in self.outcomes.items():
            if labels[:2] in chosen and labels[2] != "ok":
                kinds[labels[2]] = kinds.get(labels[2], 0.0) + count / self.past
        return Figures(
            sum(_of(self.outcomes, chosen)[:1]) / self.past,
            sum(kinds.values()),
            kinds,
            sum(_of(self.tokens, chosen)[:1]) / self.past,
            _quantiles(_of(self.first_token, chosen), SECONDS),
            _quantiles(_of(self.between_tokens, chosen), TOKEN_SECONDS),
        )


class LiveFigures:
    """The points of the last 15 minutes.

    Args:
        metrics: what all workers count.
        backends: by name.
    """

    def __init__(self, metrics: Metrics, backends: Mapping[str, Backend]) -> None:
        self._metrics = metrics
        self._backends = backends
        self._before: Totals = {}
        self._before_engines: dict[str, tuple[int, int, int]] = {}
        self._looked = 0.0
        self.number = 0
        self.points: deque[LivePoint] = deque(maxlen=_KEPT)

    def look(self, health: Mapping[str, Health], backend_of: BackendOf) -> bool:
        """Add a point if it is time; return whether it was.

        Args:
            health: by backend.
            backend_of: returns the backend of each arm, by endpoint and arm.
        """
        now = time.time()
        past = now - self._looked
        if past < INTERVAL:
            return False
        totals = self._metrics.totals()
        if self._looked:
            self.points.append(self._point(now, past, totals, health, backend_of()))
            self.number += 1
        else:
            self._engines()
        self._looked, self._before = now, totals
        return True

    def _point(
        self,
        now: float,
        past: float,
        totals: Totals,
        health: Mapping[str, Health],
        backend_of: Mapping[tuple[str, ...], str],
    ) -> LivePoint:
        counted = _Counted(
            past,
            self._counted(totals, "gw_served_requests"),
            self._counted(totals, "vllm:generation_tokens"),
            self._counted(totals, "vllm:time_to_first_token_seconds"),
            self._counted(totals, "vllm:inter_token_latency_seconds"),
        )
        groups: dict[str, list[tuple[str, ...]]] = {"": []}
        by_backend: dict[str, list[tuple[str, ...]]] = {}
        for endpoint, arm in sorted({(labels[0], labels[1]) for labels in (*counted.outcomes, *counted.tokens)}):
            for name in ("", endpoint, f"{endpoint}:{arm}"):
                groups.setdefault(name, []).append((endpoint, arm))
            if (backend := backend_of.get((endpoint, arm))) is not None:
                by_backend.setdefault(backend, []).append((endpoint, arm))
        errors: dict[str, float] = {}
        for labels, (count, *_) in self._counted(totals, "gw_requests").items():
            if labels[2] != "ok":
                errors[labels[2]] = errors.get(labels[2], 0.0) + count / past
        gauges = self._metrics.totals(living=True)
        running = int(sum(values[0] for values in gauges.get("gw_requests_running", {}).values()))
        return LivePoint(
            now,
            max(0, running),
            {name: counted.of(arms) for name, arms in groups.items()},
            {name: counted.of(arms) for name, arms in by_backend.items()},
            errors,
            self._engines(),
            self._states(totals, health),
        )

    def _counted(self, totals: Totals, name: str) -> dict[Labels, list[float]]:
        """What was counted of a metric since the point before, where anything was."""
        before = self._before.get(name, {})
        found = {}
        for labels, values in totals.get(name, {}).items():
            old = before.get(labels)
            change = values if old is None else [now - then for now, then in zip(values, old, strict=True)]
            if any(change):
                found[labels] = change
        return found

    def _engines(self) -> dict[str, EngineFigures]:
        found = {}
        for name, state in self._engine_states():
            old = self._before_engines.get(name, (0, 0, 0))
            queries, hits = state.prefix_queries - old[0], state.prefix_hits - old[1]
            self._before_engines[name] = state.prefix_queries, state.prefix_hits, state.preemptions
            found[name] = EngineFigures(
                state.running,
                state.waiting,
                state.kv_usage,
                hits / queries if queries > 0 and hits >= 0 else None,  # an engine that starts anew counts from 0
                max(0, state.preemptions - old[2]),
                state.resident_bytes,
            )
        return found

    def _engine_states(self) -> Iterator[tuple[str, EngineState]]:
        """The engines that run, by their backend's name, which is followed by the engine's if there are several."""
        for name, backend in self._backends.items():
            states = backend.engine_states if isinstance(backend, RunsEngine) else {}
            for engine, state in states.items():
                if state is not None:
                    yield name if len(states) == 1 else f"{name} {engine}", state

    def _states(self, totals: Totals, health: Mapping[str, Health]) -> dict[str, BackendState]:
        attempts = self._counted(totals, "gw_upstream_attempts")
        retries = self._counted(totals, "gw_upstream_retries")
        found = {}
        for name, state in health.items():
            mine = {labels[1]: int(values[0]) for labels, values in attempts.items() if labels[0] == name}
            failures = {outcome: count for outcome, count in mine.items() if outcome != "ok"}
            again = int(sum(retries.get((name,), [0.0])))
            found[name] = BackendState(state.status, state.detail, sum(mine.values()), failures, again)
        return found


def _of(counted: Mapping[Labels, Sequence[float]], arms: Iterable[tuple[str, ...]]) -> list[float]:
    """The sums over the series of these arms; [] without any."""
    rows = [values for labels, values in counted.items() if labels[:2] in arms]
    return [sum(column) for column in zip(*rows, strict=True)]


def _quantiles(histogram: Sequence[float], bounds: Sequence[float]) -> tuple[float, float] | None:
    """Median and 95th percentile of a histogram's counts, whose last number is a sum; None if it is empty."""
    counts = histogram[:-1]
    total = sum(counts)
    return (_quantile(counts, bounds, 0.5 * total), _quantile(counts, bounds, 0.95 * total)) if total else None


def _quantile(counts: Sequence[float], bounds: Sequence[float], wanted: float) -> float:
    """The value below which `wanted` observations lie, by linear interpolation within a bucket."""
    below, low = 0.0, 0.0
    for count, high in zip(counts, bounds, strict=False):
        if below + count >= wanted and count:
            return low + (high - low) * (wanted - below) / count
        below, low = below + count, high
    return bounds[-1]
