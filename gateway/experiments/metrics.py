"""What is counted of an arm: the metrics that are compared, and plain counts (totals)."""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.experiments.agreement import DIVERGENCES, UNPAIRED
from schemas.ir import FinishReason


class Metric(msgspec.Struct, frozen=True):
    """A metric by which arms are compared.

    Attributes:
        better: which direction is good; None: neither.
        kind: what its values are. A "rate" counts 0 or 1, and rare events of it may be unseen yet. A "time" is in
            seconds, and is counted three times: as it is, as its logarithm (`histogram.log_seconds`, by whose mean arms
            are compared) and in a histogram (`histogram.bin_of`).
    """

    name: str
    better: Literal["higher", "lower"] | None = None
    kind: Literal["rate", "time", "number"] = "number"


METRICS = (
    Metric("success", "higher", "rate"),
    Metric("time_to_first_token", "lower", "time"),
    Metric("inter_token_latency", "lower", "time"),
    Metric("latency", "lower", "time"),
    Metric("prompt_tokens"),
    Metric("completion_tokens"),
)
"""Times in seconds; all but `success` are over answered requests only. Among the counters they follow the exposures."""

TIMES = tuple(metric.name for metric in METRICS if metric.kind == "time")
"""The names of the times, in the order of the rows of their logarithms and of their histograms. The logarithms are
rows of the counters between the compared metrics and the pair metrics; the histograms are [arms, `TIMES`, bins].
"""

EXCLUDED = ("cancelled", "refused", "fell_back", "direct", "shadow", "stopped")
"""Why a request is not compared; copies for shadows and stops of the guardrail are counted beside them."""

TOTALS = (*EXCLUDED, *FinishReason, *UNPAIRED, *DIVERGENCES)
"""The names of an arm's plain counts, in their order."""

REASON_AT = {reason: TOTALS.index(reason) for reason in FinishReason}
UNPAIRED_AT = range(len(TOTALS) - len(DIVERGENCES) - len(UNPAIRED), len(TOTALS) - len(DIVERGENCES))
DIVERGENCES_AT = range(UNPAIRED_AT.stop, len(TOTALS))
