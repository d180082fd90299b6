"""One endpoint's experiment: counts exposures and outcomes by arm, and reports means, intervals and decisions.

An arm is a served entity as the statistics see it; the first one is the control. Exposures are counted when a request
is assigned, outcomes when it ends. What a request ends with counts for the arm that it was assigned to, also where
another arm answered (intention to treat): a failure that fallback repairs is a failure of its arm. Counted apart are
requests that no arm is to blame for: direct calls, those that the server's shutdown cancelled, those that not every arm
can answer, and those that came while an arm was still loading.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import structlog

from gateway.config import Endpoint
from gateway.experiments.counters_file import LAYOUT_VERSION, CountersFile, Layout
from gateway.experiments.feedback_ring import Answered
from gateway.experiments.guardrail import broken, has_guardrails
from gateway.experiments.metrics import (
    DIVERGENCES_AT,
    EXCLUDED,
    METRICS,
    REASON_AT,
    TIMES,
    TOTALS,
    UNPAIRED,
    UNPAIRED_AT,
    metrics_of,
)
from gateway.experiments.outcome import Outcome, exclusion
from gateway.experiments.pairs.agreement import Agreement, Example
from gateway.experiments.pairs.examples import Examples
from gateway.experiments.report import Report, ShadowReport, SplitSums, build, shadow_report
from gateway.experiments.request_counts import count_request
from gateway.experiments.statistics.histogram import BINS
from gateway.experiments.stratum import (
    CANCELLED,
    PAIRS,
    REQUESTS,
    SHADOWS,
    UNENDED,
    SplitReport,
    Stratum,
    feedback_file,
)
from gateway.routing.target import Plan, Target
from schemas.errors import BackendUnavailable, InvalidRequest

log = structlog.get_logger()

_EXPOSURES = 0
_FELL_BACK = EXCLUDED.index("fell_back")


class Experiment:
    """One endpoint's experiment. Every worker counts for itself; reports add up the counters of all.

    Figures belong to what is compared (`key`): a changed margin or another feedback metric keeps them. Each split has
    figures of its own.

    Attributes:
        control: the first arm's name.
        takes_feedback: whether it has feedback metrics.
        has_guardrails: whether an arm may be stopped.
        known_stops: the arms that were stopped at the last look.

    Args:
        name: the endpoint's.
        endpoint: its arms and how to compare them.
        folder: where workers share their counters; None for a worker alone.
        slot: this worker's number there.
        version: of the endpoint's configuration.
        reset: when its figures were last reset (Unix time in nanoseconds); 0: never.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        folder: Path | None = None,
        slot: int = 0,
        *,
        version: int = 1,
        reset: int = 0,
    ) -> None:
        self._name = name
        self._endpoint = endpoint
        self._arms = len(endpoint.served_entities)
        self._index = {arm.name: number for number, arm in enumerate(endpoint.served_entities)}
        self._metrics = metrics_of(endpoint)
        self.key = key(name, endpoint, reset)
        self._folder = folder / self.key if folder is not None else None
        self._slot = slot
        self._split = "-".join(str(arm.traffic_percentage) for arm in endpoint.served_entities)
        self._tag = _tag(self.key, self._split)
        self._strata: dict[str, Stratum] = {}
        present = self._stratum(self._split)
        present.begin(version)
        self._counters = present.file(REQUESTS)
        stops = self._folder / "stops" if self._folder is not None else None
        self._stops = CountersFile(Layout(self._arms, 0, 0, 1), stops, slot)
        self.control = endpoint.served_entities[0].name
        self.takes_feedback = bool(endpoint.experiment.feedback)
        self.has_guardrails = has_guardrails(endpoint)
        self.known_stops: frozenset[str] = frozenset()
        self.touch()
        self._examples = Examples(self._folder / "examples" if self._folder is not None else None, slot)

    def touch(self) -> None:
        """Note that the figures are in use now, so that they are not removed for their age (`old_figures`)."""
        if self._folder is not None:
            with suppress(FileNotFoundError):  # somebody has removed it
                os.utime(self._folder)

    def exposed(self, plan: Plan) -> None:
        """Count a request that was assigned to an arm; not one that named its served entity."""
        if plan.unit is not None and not plan.only_one_arm and not plan.arm_loads:
            # Counted for the assigned arm, whoever answers in the end: the split is tested, not the fallbacks.
            self._counters.count_row(self._index[plan.targets[0].entity.name], plan.unit.bucket, _EXPOSURES)

    def ended(self, plan: Plan, ended: Outcome) -> Answered | None:
        """Count a request that ended, for the arm that it was assigned to.

        Args:
            plan: the request's.
            ended: how it ended.

        Returns:
            Who answered, if users may send feedback for the answer, else None.
        """
        arm = self._index[plan.targets[0].entity.name]
        if (why := exclusion(plan, ended.outcome)) is not None:
            self._counters.count(arm, EXCLUDED.index(why))
            if why == "cancelled" and plan.unit is not None:
                self._stratum(self._split).file(UNENDED).count_row(arm, plan.unit.bucket, CANCELLED)
            return None
        assert plan.unit is not None
        counters, bucket = self._counters, plan.unit.bucket
        if count_request(counters, arm, bucket, ended):
            for reason in ended.reasons:
                counters.count(arm, REASON_AT[reason])
        elif ended.elsewhere or ended.own != ended.outcome:  # passed over, it may have been asked after all, and last
            counters.count(arm, _FELL_BACK)
        takes_feedback = self.takes_feedback and ended.own == "ok" and ended.usage is not None
        return Answered(self._tag, arm, bucket) if takes_feedback else None

    def shadowed(self, target: Target, bucket: int, values: Sequence[float | None]) -> None:
        """Count a copy for a shadow that ended or was dropped.

        Args:
            target: the shadow.
            bucket: the unit's.
            values: in the order of `SHADOW_METRICS`; None: not known of this copy.
        """
        arm = self._index[target.entity.name]
        if values[0]:  # a dropped copy never reached the arm
            self._counters.count(arm, EXCLUDED.index("shadow"))
        known = [(row, value) for row, value in enumerate(values) if value is not None]
        self._stratum(self._split).file(SHADOWS).add(arm, bucket, known)

    def paired(self, target: Target, bucket: int, pair: Agreement, example: Callable[[], Example]) -> None:
        """Count a pair: an answer of the control, and this arm's own to the same prompt and seed.

        Args:
            target: the arm.
            bucket: the unit's.
            pair: its metrics.
            example: makes the pair's entry in the list of those that differ most.
        """
        arm = self._index[target.entity.name]
        measured = [(row, value) for row, value in enumerate(pair.metrics) if value is not None]
        self._stratum(self._split).file(PAIRS).add(arm, bucket, measured)
        if not pair.value("identical"):
            self._examples.note(target.entity.name, pair.largest_difference, example)
        self._counters.count(arm, DIVERGENCES_AT.start + pair.divergence)

    def unpaired(self, target: Target, why: str) -> None:
        """Count a pair that could not be made; `why` is one of `UNPAIRED`."""
        self._counters.count(self._index[target.entity.name], UNPAIRED_AT.start + UNPAIRED.index(why))

    def check_feedback(self, name: str, value: float) -> None:
        """Check that there is a feedback metric of this name, and that it may have this value.

        Raises:
            schemas.errors.InvalidRequest: there is no such metric, or the value is out of its bounds.
        """
        known = self._endpoint.experiment.feedback_metrics
        if name not in known:
            names = ", ".join(known) or "none"
            raise InvalidRequest(
                f"The endpoint '{self._name}' has no metric '{name}'; it has: {names}.", param="metric"
            )
        low, high = known[name].min, known[name].max
        if low is not None and value < low:
            raise InvalidRequest(f"The value {value:g} of the metric '{name}' is below {low:g}.", param="value")
        if high is not None and value > high:
            raise InvalidRequest(f"The value {value:g} of the metric '{name}' is above {high:g}.", param="value")

    def split_of(self, tag: int) -> str | None:
        """The split of the stratum with this tag; None if it is no stratum of this experiment."""
        return next((split for split in self._splits() if _tag(self.key, split) == tag), None)

    def feedback(self, split: str, answered: Answered, metric: str, value: float, instead_of: float | None) -> None:
        """Count a user's value for an answer, in its stratum; it may replace one sent before."""
        counters = self._stratum(split).file(feedback_file(metric))
        if instead_of is None:
            counters.add(answered.arm, answered.bucket, ((0, value),))
        else:
            counters.correct(answered.arm, answered.bucket, 0, value - instead_of)

    def history(self) -> tuple[SplitReport, ...]:
        """The splits that were served since the figures began, the oldest first.

        Raises:
            schemas.errors.BackendUnavailable: somebody has removed the figures, and this worker counts for nobody.
        """
        splits = self._splits()
        if not splits:
            message = f"The figures of '{self._name}' were removed from the disk: reset them, or restart the server."
            raise BackendUnavailable(message)
        return tuple(sorted((self._stratum(split).report() for split in splits), key=lambda each: each.since))

    def report(self) -> Report:
        """Means, intervals and decisions over the counters of all workers."""
        found = build(self._name, self._endpoint, self._metrics, self._read())
        paired = (msgspec.structs.replace(pairs, examples=self._examples.of(pairs.arm)) for pairs in found.paired)
        return msgspec.structs.replace(found, paired=tuple(paired), shadows=tuple(self._shadow_reports()))

    def _shadow_reports(self) -> Iterator[ShadowReport]:
        shadows = [arm.name for arm in self._endpoint.served_entities if arm.shadow is not None]
        if not shadows:
            return
        # Copies are of all requests, whatever their split, so that nothing is to be weighted.
        rows = np.sum([self._stratum(split).copies() for split in self._splits()], axis=0)
        for name in shadows:
            yield shadow_report(name, rows[self._index[name]], self._endpoint.experiment.alpha)

    def stopped(self) -> frozenset[str]:
        """The arms that guardrails have stopped, on any worker; also stops those that have become worse by now.

        A stop holds until the figures are reset, for all workers and after restarts: the counters remember it.
        """
        if not self.has_guardrails:
            return frozenset()
        stops = self._stops.read().totals[:, 0]
        stopped = {name for name, arm in self._index.items() if stops[arm]}
        # The control is never stopped: something has to answer, and everything is compared with it.
        if candidates := self._index.keys() - stopped - {self.control}:
            for name, why in broken(self._endpoint, self._metrics, self._read(), candidates).items():
                self._stops.count(self._index[name], 0)
                stopped.add(name)
                log.warning("arm.stopped", model=self._name, served=name, why=why)
        self.known_stops = frozenset(stopped)
        return self.known_stops

    def _stratum(self, split: str) -> Stratum:
        if (found := self._strata.get(split)) is None:
            found = self._strata[split] = Stratum(split, self._folder, self._slot)
        return found

    def _splits(self) -> list[str]:
        """The splits that the experiment has had, as percentages in the order of the arms."""
        if self._folder is None:
            return [self._split]
        return sorted(each.parent.name for each in self._folder.glob("*/about.json"))

    def _read(self) -> list[SplitSums]:
        """The counters of all workers, by split; the present one is the last."""
        feedback = tuple(self._endpoint.experiment.feedback)
        splits = [split for split in self._splits() if split != self._split]
        found = [
            SplitSums(stratum.shares, stratum.read(feedback), stratum.unended())
            for stratum in map(self._stratum, (*splits, self._split))
        ]
        # The stops are counted beside all splits, and shown with the present one.
        found[-1].sums.totals[:, EXCLUDED.index("stopped")] = self._stops.read().totals[:, 0] > 0
        return found


def key(name: str, endpoint: Endpoint, reset: int) -> str:
    """What an experiment's figures belong to, as 32 hexadecimal digits: the endpoint, its arms, how units are assigned,
    and the last reset. Not how arms are compared: margins, guardrails or feedback change nothing that was counted.
    """
    arms = [(arm.name, arm.backend, arm.model) for arm in endpoint.served_entities]
    # What a release counts decides how its files are laid out: another one begins with files of its own.
    counted = (LAYOUT_VERSION, [metric.name for metric in METRICS], TIMES, TOTALS, BINS)
    identity = (name, arms, endpoint.routing, endpoint.experiment.unit, reset, counted)
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:32]


def _tag(key: str, split: str) -> int:
    """64 bits that name a stratum in the feedback store."""
    return int.from_bytes(hashlib.blake2b(f"{key} {split}".encode(), digest_size=8).digest())
