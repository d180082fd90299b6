"""One endpoint's experiment: counts exposures and outcomes by arm, and reports means, intervals and decisions.

An arm is a served entity as the statistics see it; the first one is the control. Exposures are counted when a request
is assigned, outcomes when it ends. Compared are only requests that the assigned arm answered or failed: direct calls,
cancelled and refused requests, and those that another arm had to answer are excluded, and counted as such.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from gateway.config import Endpoint
from gateway.experiments.agreement import PAIR_METRICS, UNPAIRED, Agreement, Example
from gateway.experiments.confidence import difference, mean
from gateway.experiments.counters_file import CountersFile
from gateway.experiments.examples import Examples
from gateway.experiments.metrics import DIVERGENCES_AT, EXCLUDED, METRICS, REASON_AT, TOTALS, UNPAIRED_AT, Metric
from gateway.experiments.report import Report, arm_alpha, build
from gateway.routing.target import Plan, Target
from schemas.errors import InvalidRequest
from schemas.ir import FinishReason, Usage

log = structlog.get_logger()

# Errors that count against the arm. Others (an invalid request, a limit of the client's) would have come from any arm,
# and are "refused".
_FAILURES = frozenset(
    {"backend_failed", "backend_unavailable", "timeout", "incomplete", "internal", "overloaded", "shutting_down"}
)


@dataclass(slots=True, eq=False)
class Outcome:
    """How a request ended.

    Attributes:
        outcome: "ok", "client_gone", "cancelled", or an error's kind.
        first: seconds until the first event.
        total: seconds until the end.
        usage: None if the answer did not end.
        reasons: the finish reason of each choice.
    """

    outcome: str
    first: float = 0.0
    total: float = 0.0
    usage: Usage | None = None
    reasons: tuple[FinishReason, ...] = ()


class Experiment:
    """One endpoint's experiment. Every worker counts for itself; reports add up the counters of all.

    Args:
        name: the endpoint's.
        endpoint: its arms and how to compare them; a changed configuration is another experiment.
        folder: where workers share their counters; None for a worker alone.
        worker: this worker's name there.
        since: when the configuration was put in force (Unix time in nanoseconds): one that comes back begins anew.
    """

    def __init__(
        self, name: str, endpoint: Endpoint, folder: Path | None = None, worker: str = "0", since: int = 0
    ) -> None:
        self._name = name
        self._endpoint = endpoint
        self._metrics = METRICS + tuple(Metric(*item) for item in endpoint.experiment.feedback.items())
        self._index = {arm.name: number for number, arm in enumerate(endpoint.served_entities)}
        self.key = key(name, endpoint, since)
        path = folder / self.key if folder is not None else None
        self._paired = [number for number, arm in enumerate(endpoint.served_entities) if arm.paired is not None]
        # Metrics in the counters: 0 is exposures, then METRICS, then feedback, then pairs if an arm is paired.
        self._pair_at = 1 + len(self._metrics)
        metrics = self._pair_at + (len(PAIR_METRICS) if self._paired else 0)
        self._counters = CountersFile(len(self._index), metrics, len(TOTALS), path, worker)
        self._examples = Examples(folder / "examples" / self.key if folder is not None else None, worker)

    @property
    def tag(self) -> int:
        """30 bits of its key, by which the feedback store names it."""
        return int(self.key, 16) >> 98  # 32 hexadecimal digits are 128 bits; the highest 30 of them

    def close(self) -> None:
        """Remove the counters of all workers. Requests in flight may still end."""
        self._counters.close()
        self._examples.close()

    def exposed(self, plan: Plan) -> None:
        """Count a request that was assigned to an arm; not one that named its served entity."""
        if plan.unit is not None:
            # Counted for the assigned arm, whoever answers in the end: the split is tested, not the fallbacks.
            self._counters.add(self._index[plan.targets[0].entity.name], 0, plan.unit.bucket, 1.0)

    def ended(self, plan: Plan, last: Target, ended: Outcome) -> tuple[int, int] | None:
        """Count a request that ended, for the arm that it was assigned to.

        Args:
            plan: the request's.
            last: the target that was asked last.
            ended: how it ended.

        Returns:
            The arm's index and the unit's bucket if users may send feedback for the answer, else None.
        """
        arm = self._index[plan.targets[0].entity.name]
        if (why := _exclusion(plan, last, ended.outcome)) is not None:
            self._counters.count(arm, EXCLUDED.index(why))
            return None
        assert plan.unit is not None
        bucket, usage, add = plan.unit.bucket, ended.usage, self._counters.add
        # The numbers are indices of METRICS, plus 1 for the exposures.
        add(arm, 1, bucket, float(ended.outcome == "ok"))
        if ended.outcome != "ok" or usage is None:
            return None
        add(arm, 2, bucket, ended.first)
        # One token has no interval between tokens.
        if usage.completion_tokens > 1:
            add(arm, 3, bucket, (ended.total - ended.first) / (usage.completion_tokens - 1))
        add(arm, 4, bucket, ended.total)
        add(arm, 5, bucket, usage.prompt_tokens)
        add(arm, 6, bucket, usage.completion_tokens)
        for reason in ended.reasons:
            self._counters.count(arm, REASON_AT[reason])
        return (arm, bucket) if self._endpoint.experiment.feedback else None

    def shadowed(self, target: Target) -> None:
        """Count a copy sent to a shadow that ended."""
        self._counters.count(self._index[target.entity.name], EXCLUDED.index("shadow"))

    def paired(self, target: Target, bucket: int, pair: Agreement, example: Callable[[], Example]) -> None:
        """Count a pair: an answer of the control, and this arm's own to the same prompt and seed.

        Args:
            target: the arm.
            bucket: the unit's.
            pair: its metrics.
            example: makes the pair's entry in the list of those that differ most.
        """
        arm = self._index[target.entity.name]
        for at, value in enumerate(pair.metrics, self._pair_at):
            if value is not None:
                self._counters.add(arm, at, bucket, value)
        if not pair.value("identical"):
            self._examples.note(target.entity.name, pair.largest_difference, example)
        self._counters.count(arm, DIVERGENCES_AT.start + pair.divergence)

    def unpaired(self, target: Target, why: str) -> None:
        """Count a pair that could not be made; `why` is one of `UNPAIRED`."""
        self._counters.count(self._index[target.entity.name], UNPAIRED_AT.start + UNPAIRED.index(why))

    def metric(self, name: str) -> int:
        """The index of a feedback metric.

        Raises:
            schemas.errors.InvalidRequest: there is no such metric.
        """
        known = list(self._endpoint.experiment.feedback)
        if name not in known:
            names = ", ".join(known) or "none"
            raise InvalidRequest(
                f"The endpoint '{self._name}' has no metric '{name}'; it has: {names}.", param="metric"
            )
        return known.index(name)

    def feedback(self, arm: int, bucket: int, metric: int, value: float, instead_of: float | None = None) -> None:
        """Count a user's value for an answer of this arm; it may replace one sent before."""
        at = 1 + len(METRICS) + metric
        if instead_of is None:
            self._counters.add(arm, at, bucket, value)
        else:
            self._counters.correct(arm, at, bucket, value - instead_of)

    def report(self) -> Report:
        """Means, intervals and decisions over the counters of all workers."""
        sums, totals = self._counters.read()
        found = build(self._name, self._endpoint, self._metrics, sums, totals)
        paired = (msgspec.structs.replace(pairs, examples=self._examples.of(pairs.arm)) for pairs in found.paired)
        return msgspec.structs.replace(found, paired=tuple(paired))

    def stopped(self) -> frozenset[str]:
        """The arms that the guardrail has stopped, on any worker; also stops those that have become worse by now."""
        guardrail = self._endpoint.experiment.guardrail
        if guardrail is None:
            return frozenset()
        sums, totals = self._counters.read()
        # The counters are how other workers, and this worker's successor, learn of a stop: it stays for the life of the
        # experiment.
        stopped = {name for name, arm in self._index.items() if totals[arm, EXCLUDED.index("stopped")]}
        for name, arm in self._index.items():
            worse = difference(mean(*sums[0, 1]), mean(*sums[arm, 1]), arm_alpha(self._endpoint))
            # The whole interval lies below the margin. It is infinite while there are too few requests, and it is valid
            # at every look, so looking each second does not raise the chance of a false stop.
            if arm and name not in stopped and worse.high < -guardrail.worse_than:
                self._counters.count(arm, EXCLUDED.index("stopped"))
                stopped.add(name)
                log.warning("arm.stopped", model=self._name, served=name, success=worse.estimate, at_most=worse.high)
        return frozenset(stopped)


def key(name: str, endpoint: Endpoint, since: int) -> str:
    """An experiment's identity for all workers: 32 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode((name, endpoint, since))).hexdigest()[:32]


def _exclusion(plan: Plan, last: Target, outcome: str) -> str | None:
    """Why a request is not compared; None if it is."""
    # The order matters: a request counts under the first reason that applies.
    if plan.unit is None:
        return "direct"
    if outcome in ("client_gone", "cancelled"):
        return "cancelled"
    # Another arm answered: its times and tokens say nothing about the assigned one. The report has their number.
    if last is not plan.targets[0]:
        return "fell_back"
    return None if outcome == "ok" or outcome in _FAILURES else "refused"
