"""The report of an experiment as it is sent: its figures, and what is said and done about them."""

from __future__ import annotations

import msgspec

from gateway.experiments.report import Report
from gateway.rollout.ramp import RampReport


class FullReport(Report, frozen=True, kw_only=True):
    """A report with the ramp that it decides; `ramp` is null without one."""

    ramp: RampReport | None = None

    @classmethod
    def of(cls, report: Report, ramp: RampReport | None) -> FullReport:
        """The report with its ramp."""
        return cls(**msgspec.structs.asdict(report), ramp=ramp)
