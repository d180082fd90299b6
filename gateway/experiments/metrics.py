"""What is counted of an arm: the metrics that are compared, and plain counts (totals)."""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.experiments.agreement import DIVERGENCES, UNPAIRED
from schemas.ir import FinishReason


class Metric(msgspec.Struct, frozen=True):
    """A metric by which arms are compared. `better`: which direction is good; None: neither."""

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
"""Times in seconds; all but `success` are over answered requests only. Among the counters they follow the exposures."""

EXCLUDED = ("cancelled", "refused", "fell_back", "direct", "shadow", "stopped")
"""Why a request is not compared; copies for shadows and stops of the guardrail are counted beside them."""

TOTALS = (*EXCLUDED, *FinishReason, *UNPAIRED, *DIVERGENCES)
"""The names of an arm's plain counts, in their order."""

REASON_AT = {reason: TOTALS.index(reason) for reason in FinishReason}
UNPAIRED_AT = range(len(TOTALS) - len(DIVERGENCES) - len(UNPAIRED), len(TOTALS) - len(DIVERGENCES))
DIVERGENCES_AT = range(UNPAIRED_AT.stop, len(TOTALS))
