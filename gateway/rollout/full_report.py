"""The report of an experiment as it is sent: its figures, and what is said and done about them."""

from __future__ import annotations

import time

import msgspec

from gateway.experiments.report import Report
from gateway.experiments.stratum import SplitReport
from gateway.rollout.ramp import RampReport
from gateway.rollout.verdict import Verdict, verdict


class FullReport(Report, frozen=True, kw_only=True):
    """A report as it is sent.

    Attributes:
        since: when its first request could be counted; Unix time in seconds.
        splits: those that the endpoint has had since then, the oldest first.
        verdict: in one word, with its reason; null where there is nothing to compare.
        ramp: that the report decides; null without one.
    """

    since: float
    splits: tuple[SplitReport, ...]
    verdict: Verdict | None = None
    ramp: RampReport | None = None

    @classmethod
    def of(cls, report: Report, ramp: RampReport | None, splits: tuple[SplitReport, ...]) -> FullReport:
        """The report with its verdict, its ramp and its splits, of which there is at least the present one."""
        since = splits[0].since
        found = verdict(report, since, time.time())
        return cls(**msgspec.structs.asdict(report), since=since, splits=splits, verdict=found, ramp=ramp)
