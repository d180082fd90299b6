"""The report of an experiment as it is sent: its figures, and what is said and done about them."""

from __future__ import annotations

import msgspec

from gateway.experiments.report import Report
from gateway.experiments.stratum import SplitReport
from gateway.rollout.ramp import RampReport


class FullReport(Report, frozen=True, kw_only=True):
    """A report as it is sent.

    Attributes:
        since: when its first request could be counted; Unix time in seconds.
        splits: those that the endpoint has had since then, the oldest first.
        ramp: that the report decides; null without one.
    """

    since: float
    splits: tuple[SplitReport, ...]
    ramp: RampReport | None = None

    @classmethod
    def of(cls, report: Report, ramp: RampReport | None, splits: tuple[SplitReport, ...]) -> FullReport:
        """The report with its ramp and its splits, of which there is at least the present one."""
        return cls(**msgspec.structs.asdict(report), since=splits[0].since, splits=splits, ramp=ramp)
