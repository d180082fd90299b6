"""What is counted of an arm: the metrics that are compared, and plain counts (totals)."""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.config import Endpoint
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
    Metric("served", "higher", "rate"),
    Metric("refused", "lower", "rate"),
    Metric("abandoned", "lower", "rate"),
    Metric("time_to_first_token", "lower", "time"),
    Metric("inter_token_latency", "lower", "time"),
    Metric("latency", "lower", "time"),
    Metric("prompt_tokens"),
    Metric("completion_tokens"),
)
"""What is counted of every request, in the order of the counters' rows, where they follow the exposures.

Each counts for the arm that the request was assigned to (intention to treat):

- `success`: whether that arm answered; of requests that it answered or failed. An arm that was passed over because it
  is in trouble has failed.
- `served`: whether the client got an answer, from whichever arm; of the same requests.
- `refused`: whether that arm refused the request as such (too long for it, a feature or value that it does not take).
- `abandoned`: whether the client left before the end.
- Times, in seconds, and tokens: of requests that this arm itself answered. `latency` also has abandoned requests, which
  lasted at least until the client left. The times between tokens are of streams only.
"""

COST = Metric("cost", "lower")
"""What the tokens of a request cost at its arm's prices, without discounts for cached ones. For guardrails only: it
follows from what is counted of tokens.
"""

TIMES = tuple(metric.name for metric in METRICS if metric.kind == "time")
"""The names of the times, in the order of the rows of their logarithms and of their histograms. The logarithms are
rows of the counters between the compared metrics and the pair metrics; the histograms are [arms, `TIMES`, bins].
"""

QUANTILES = {"p50": 0.5, "p95": 0.95}
"""The quantiles of times that a report has, by name."""

EXCLUDED = ("cancelled", "fell_back", "direct", "only_one_arm", "loading", "shadow", "stopped")
"""Requests counted apart from the metrics: cancelled by the shutdown of the server, sent to a named served entity, such
as not every arm can answer, or planned while an arm was still loading. Of those that fell back, because another arm was
asked, times and tokens are not compared. Copies for shadows and stops of the guardrail are counted beside them.
"""

IN_TROUBLE = "in_trouble"
"""How an arm ended a request when it was passed over because its backend is in trouble."""

LOADING = "loading"
"""How it ended one when it was passed over because its backend still loads for the first time, and why none of its
endpoint's requests are compared then.
"""

FAILURES = frozenset(
    {
        IN_TROUBLE,
        "backend_failed",
        "backend_unavailable",
        "timeout",
        "incomplete",
        "internal",
        "overloaded",
        "rate_limited",
        "shutting_down",
        "model_not_found",
    }
)
"""Kinds of errors by which an arm has failed. `model_not_found`, after the endpoint was found: the arm's own model. Any
other kind is a refusal of the request.
"""

SHADOW_METRICS = ("sent", "success", "time_to_first_token", "latency", "completion_tokens")
"""What is counted of the copies for a shadow, in the order of the counters' rows: whether a copy was sent at all; of
those, whether it was answered; of those, times in seconds and tokens.
"""

UNPAIRED = ("dropped", "failed", "too_long", "unsuitable", "unlike_tokenizers")
"""Why a drawn answer made no pair: too many pairs at once, an error, over the token limit, not a single choice of plain
text, different vocabularies.
"""

_LAST = 14  # 2**13 = 8192 tokens and more share the last bin
DIVERGENCES = ("0", "1", *(f"{2**n}-{2 ** (n + 1) - 1}" for n in range(1, _LAST - 1)), f"{2 ** (_LAST - 1)}+", "never")
"""Histogram bins: tokens that are the same before the first that differs, in powers of two."""

TOTALS = (*EXCLUDED, *FinishReason, *UNPAIRED, *DIVERGENCES)
"""The names of an arm's plain counts, in their order."""

REASON_AT = {reason: TOTALS.index(reason) for reason in FinishReason}
UNPAIRED_AT = range(len(TOTALS) - len(DIVERGENCES) - len(UNPAIRED), len(TOTALS) - len(DIVERGENCES))
DIVERGENCES_AT = range(UNPAIRED_AT.stop, len(TOTALS))


def metrics_of(endpoint: Endpoint) -> tuple[Metric, ...]:
    """The compared metrics of an endpoint: those of every request, then its feedback metrics."""
    feedback = endpoint.experiment.feedback_metrics
    return METRICS + tuple(Metric(name, bounds.better) for name, bounds in feedback.items())


def wrong_metrics(endpoint: Endpoint) -> str | None:
    """Which metric in an endpoint's experiment cannot be used there, as a text to append to its name; None: all can."""
    settings = endpoint.experiment
    # Under one name a report would have the values of users in place of those that are counted.
    if taken := next((metric.name for metric in METRICS if metric.name in settings.feedback), None):
        return f".experiment.feedback: '{taken}' is the gateway's own metric; give the one of users another name"
    known = {metric.name: metric for metric in metrics_of(endpoint) if metric.better is not None}
    named = [("primary", name) for name in settings.primary]
    named += [("guardrails", guardrail.metric) for guardrail in settings.guardrails if guardrail.metric != COST.name]
    named += [("ramp", name) for name in (settings.ramp.metrics if settings.ramp is not None else ())]
    for key, name in named:
        if name not in known:
            names = ", ".join(known)
            return f".experiment.{key}: there is no metric '{name}' with a better direction; there are {names}"
    for guardrail in settings.guardrails:
        if guardrail.quantile is not None and guardrail.metric not in TIMES:
            times = ", ".join(TIMES)
            return f".experiment.guardrails: '{guardrail.metric}' has no quantiles; {times} have"
        if guardrail.metric == COST.name and COST.name not in known:
            free = [arm.name for arm in endpoint.served_entities if arm.price is None and arm.shadow is None]
            if free:
                return f".experiment.guardrails: 'cost' needs the price of '{free[0]}' (served_entities, price)"
    return None
