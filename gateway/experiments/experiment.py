"""What an endpoint's arms are measured by, and what may be said of them: figures, intervals, decisions in words.

Compared is only what a unit's own arm answered or failed to: direct calls, cancelled and refused requests, and those
that another arm had to answer are counted apart. Exposure is counted when a request is assigned, outcomes at its end.
The first served entity is the control.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import structlog

from gateway.config import Endpoint
from gateway.experiments.agreement import DIVERGENCES, FIGURES, UNPAIRED, Likeness, Pairs, summary
from gateway.experiments.confidence import Array, Interval, Mean, difference, mean, wrong_split
from gateway.experiments.counters_file import CountersFile
from gateway.routing.target import Plan, Target
from schemas.errors import InvalidRequest
from schemas.ir import FinishReason, Usage

log = structlog.get_logger()

SPLIT_ALPHA = 0.001

Decision = Literal["better", "worse", "higher", "lower", "no difference", "keep collecting"]


class Metric(msgspec.Struct, frozen=True):
    """What is compared. `better`: which way is good, if either is."""

    name: str
    better: Literal["higher", "lower"] | None = None


METRICS = (
    Metric("success", "higher"),
    Metric("time_to_first_token", "lower"),
    Metric("inter_token_latency", "lower"),
    Metric("latency", "lower"),
    Metric("prompt_tokens"),
    Metric("completion_tokens"),
)
"""Times in seconds; all but `success` of answered requests only. In the counters they follow the exposures."""

APART = ("cancelled", "refused", "fell_back", "direct", "shadow", "stopped")
TOTALS = (*APART, *FinishReason, *UNPAIRED, *DIVERGENCES)
_FAILURES = frozenset(
    {"backend_failed", "backend_unavailable", "timeout", "incomplete", "internal", "overloaded", "shutting_down"}
)


@dataclass(slots=True, eq=False)
class Outcome:
    """How a request ended; times in seconds."""

    outcome: str
    first: float = 0.0
    total: float = 0.0
    usage: Usage | None = None
    reasons: tuple[FinishReason, ...] = ()


class Figures(msgspec.Struct, frozen=True):
    """One arm's: requests assigned to it, means of those compared, counts of those kept apart."""

    name: str
    traffic_percentage: int
    exposures: int
    means: dict[str, float]
    finish_reasons: dict[str, int]
    apart: dict[str, int]


class Comparison(msgspec.Struct, frozen=True):
    """One arm against the control by one metric. Bounds are null while nothing can be said."""

    arm: str
    metric: str
    difference: float
    low: float
    high: float
    decision: Decision


class Report(msgspec.Struct, frozen=True):
    """All that is known of an experiment. Its intervals hold however often one looks. `paired` tells of the arms that
    are.
    """

    endpoint: str
    control: str
    alpha: float
    arms: tuple[Figures, ...]
    comparisons: tuple[Comparison, ...]
    sample_ratio_mismatch: bool
    paired: tuple[Pairs, ...]


class Experiment:
    """One endpoint's figures, of all workers.

    Args:
        name: the endpoint's.
        endpoint: its arms and how to compare them; figures are those of exactly this configuration.
        since: when it was put in force (Unix time in nanoseconds): one that comes back begins anew.
        folder: what all workers share; None for a worker alone.
        worker: this worker's own name.
    """

    def __init__(
        self, name: str, endpoint: Endpoint, folder: Path | None = None, worker: str = "0", since: int = 0
    ) -> None:
        self._name = name
        self._endpoint = endpoint
        self._metrics = METRICS + tuple(Metric(*told) for told in endpoint.experiment.feedback.items())
        self._index = {arm.name: number for number, arm in enumerate(endpoint.served_entities)}
        self.key = key(name, endpoint, since)
        mine = folder / self.key if folder is not None else None
        self._paired = [number for number, arm in enumerate(endpoint.served_entities) if arm.paired is not None]
        self._pair_at = 1 + len(self._metrics)
        metrics = self._pair_at + (len(FIGURES) if self._paired else 0)
        self._counters = CountersFile(len(self._index), metrics, len(TOTALS), mine, worker)

    @property
    def tag(self) -> int:
        """30 bits of its key."""
        return int(self.key, 16) >> 98

    def close(self) -> None:
        """Forget the figures: no worker shall ask for them any more. Requests in flight may still end."""
        self._counters.close()

    def exposed(self, plan: Plan) -> None:
        """A request was assigned."""
        if plan.unit is not None:
            self._counters.add(self._index[plan.targets[0].entity.name], 0, plan.unit.bucket, 1.0)

    def ended(self, plan: Plan, last: Target, ended: Outcome) -> tuple[int, int] | None:
        """It ended; `last` is the target that was asked last. Returns arm and bucket if feedback may come for it."""
        arm = self._index[plan.targets[0].entity.name]
        if (apart := _apart(plan, last, ended.outcome)) is not None:
            self._counters.count(arm, APART.index(apart))
            return None
        assert plan.unit is not None
        bucket, usage, add = plan.unit.bucket, ended.usage, self._counters.add
        add(arm, 1, bucket, float(ended.outcome == "ok"))
        if ended.outcome != "ok" or usage is None:
            return None
        add(arm, 2, bucket, ended.first)
        if usage.completion_tokens > 1:
            add(arm, 3, bucket, (ended.total - ended.first) / (usage.completion_tokens - 1))
        add(arm, 4, bucket, ended.total)
        add(arm, 5, bucket, usage.prompt_tokens)
        add(arm, 6, bucket, usage.completion_tokens)
        for reason in ended.reasons:
            self._counters.count(arm, _REASONS[reason])
        return (arm, bucket) if self._endpoint.experiment.feedback else None

    def shadowed(self, target: Target) -> None:
        """A copy sent to a shadow ended."""
        self._counters.count(self._index[target.entity.name], APART.index("shadow"))

    def paired(self, target: Target, bucket: int, pair: Likeness) -> None:
        """An answer of the control was given once more by this arm."""
        arm = self._index[target.entity.name]
        for at, value in enumerate(pair.figures, self._pair_at):
            self._counters.add(arm, at, bucket, value)
        self._counters.count(arm, _DIVERGENCES.start + pair.divergence)

    def unpaired(self, target: Target, why: str) -> None:
        """It was to be, and could not; `why` is one of `UNPAIRED`."""
        self._counters.count(self._index[target.entity.name], _UNPAIRED.start + UNPAIRED.index(why))

    def metric(self, name: str) -> int:
        """The number of a metric that users tell.

        Raises:
            schemas.errors.InvalidRequest: there is no such metric.
        """
        known = list(self._endpoint.experiment.feedback)
        if name not in known:
            told = ", ".join(known) or "none"
            raise InvalidRequest(f"The endpoint '{self._name}' has no metric '{name}': {told}.", param="metric")
        return known.index(name)

    def feedback(self, arm: int, bucket: int, metric: int, value: float, instead_of: float | None = None) -> None:
        """A user's own figure for an answer of this arm, maybe instead of one told before."""
        at = 1 + len(METRICS) + metric
        if instead_of is None:
            self._counters.add(arm, at, bucket, value)
        else:
            self._counters.correct(arm, at, bucket, value - instead_of)

    def report(self) -> Report:
        """The figures now."""
        sums, totals = self._counters.read()
        means = [[mean(*arm[metric]) for metric in range(1, 1 + len(self._metrics))] for arm in sums]
        arms = self._endpoint.served_entities
        return Report(
            self._name,
            arms[0].name,
            self._endpoint.experiment.alpha,
            tuple(self._figures(number, sums[number], means[number], totals[number]) for number in range(len(arms))),
            tuple(
                self._compare(arms[number].name, metric, means[0][at], means[number][at])
                for number in range(1, len(arms))
                for at, metric in enumerate(self._metrics)
            ),
            self._mismatch(sums, totals),
            tuple(self._pairs(arms[number].name, sums[number], totals[number]) for number in self._paired),
        )

    def stopped(self) -> frozenset[str]:
        """The arms that the guardrail has stopped, on whichever worker; stops those that it must stop now."""
        guardrail = self._endpoint.experiment.guardrail
        if guardrail is None:
            return frozenset()
        sums, totals = self._counters.read()
        stopped = {name for name, arm in self._index.items() if totals[arm, APART.index("stopped")]}
        for name, arm in self._index.items():
            worse = self._difference(mean(*sums[0, 1]), mean(*sums[arm, 1]))
            if arm and name not in stopped and worse.high < -guardrail.worse_than:
                self._counters.count(arm, APART.index("stopped"))
                stopped.add(name)
                log.warning("arm.stopped", model=self._name, served=name, success=worse.estimate, at_most=worse.high)
        return frozenset(stopped)

    @property
    def _alpha(self) -> float:
        """Of one arm: all arms together share the experiment's."""
        return self._endpoint.experiment.alpha / max(1, len(self._index) - 1)

    def _difference(self, control: Mean, other: Mean) -> Interval:
        return difference(control, other, self._alpha)

    def _pairs(self, arm: str, sums: Array, totals: Array) -> Pairs:
        control, figures = self._endpoint.served_entities[0].name, sums[self._pair_at :]
        unpaired, divergences = (totals[each.start : each.stop] for each in (_UNPAIRED, _DIVERGENCES))
        return summary(control, arm, figures, unpaired, divergences, self._alpha)

    def _compare(self, arm: str, metric: Metric, control: Mean, other: Mean) -> Comparison:
        found = self._difference(control, other)
        scale = 0.1 if metric.name == "success" else abs(control.value)
        return Comparison(arm, metric.name, *found, decide(found, metric, self._endpoint.experiment.margin * scale))

    def _figures(self, number: int, sums: Array, means: list[Mean], totals: Array) -> Figures:
        arm = self._endpoint.served_entities[number]
        counts = {name: int(count) for name, count in zip(TOTALS, totals, strict=True)}
        return Figures(
            arm.name,
            arm.traffic_percentage,
            int(sums[0, 0].sum()),
            {metric.name: found.value for metric, found in zip(self._metrics, means, strict=True) if found.requests},
            {str(reason): counts[reason] for reason in FinishReason if counts[reason]},
            {name: counts[name] for name in APART},
        )

    def _mismatch(self, sums: Array, totals: Array) -> bool:
        if totals[:, APART.index("stopped")].any():
            return False  # the guardrail changed the split
        shares = np.array([arm.traffic_percentage / 100 for arm in self._endpoint.served_entities])
        return wrong_split(sums[:, 0, 0], shares, SPLIT_ALPHA)


def key(name: str, endpoint: Endpoint, since: int) -> str:
    """What an experiment is known by to all workers: 32 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode((name, endpoint, since))).hexdigest()[:32]


_REASONS = {reason: TOTALS.index(reason) for reason in FinishReason}
_UNPAIRED = range(len(TOTALS) - len(DIVERGENCES) - len(UNPAIRED), len(TOTALS) - len(DIVERGENCES))
_DIVERGENCES = range(_UNPAIRED.stop, len(TOTALS))


def decide(found: Interval, metric: Metric, margin: float) -> Decision:
    """An interval in words; differences within `margin` are none."""
    if -margin <= found.low and found.high <= margin:
        return "no difference"
    if found.low <= 0 <= found.high:
        return "keep collecting"
    way: Literal["higher", "lower"] = "higher" if found.low > 0 else "lower"
    if metric.better is None:
        return way
    return "better" if way == metric.better else "worse"


def _apart(plan: Plan, last: Target, outcome: str) -> str | None:
    """Why a request is not compared; None if it is."""
    if plan.unit is None:
        return "direct"
    if outcome in ("client_gone", "cancelled"):
        return "cancelled"
    if last is not plan.targets[0]:
        return "fell_back"
    return None if outcome == "ok" or outcome in _FAILURES else "refused"
