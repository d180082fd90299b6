"""How a request that ended changes the counters of its arm.

All requests pass here, so this is written for the processor: the numbers that a request adds are floats, and one
expression adds them to the record of its arm and bucket.
"""

from __future__ import annotations

from gateway.experiments.counters_file import CountersFile
from gateway.experiments.metrics import FAILURES
from gateway.experiments.outcome import Outcome
from gateway.experiments.statistics.histogram import BINS, UNFINISHED, logarithm_and_bin

ROWS = (
    "exposures",
    "success",
    "served",
    "refused",
    "abandoned",
    "time_to_first_token",
    "inter_token_latency",
    "latency",
    "prompt_tokens",
    "completion_tokens",
    "log time_to_first_token",
    "log inter_token_latency",
    "log latency",
)
"""The rows of a record as `count_request` knows them; a count and a sum each."""

_LATENCY = 2 * BINS


def count_request(counters: CountersFile, arm: int, bucket: int, ended: Outcome) -> bool:
    """Count a request for the arm that it was assigned to.

    The times of a request whose client left meanwhile are censored: it would have lasted at least that long. Means have
    this lower bound, and quantiles rank it as longest.

    Args:
        counters: of the requests of a split.
        arm: its index.
        bucket: the unit's.
        ended: how it ended.

    Returns:
        Whether its times count: its own arm answered, or the client left meanwhile.
    """
    own, outcome, usage = ended.own, ended.outcome, ended.usage
    answered = 1.0 if own == "ok" else 0.0
    left = 1.0 if outcome == "client_gone" else 0.0
    # What an arm that refused, or whose client left, would have done is unknown.
    compared = 1.0 if answered or own in FAILURES else 0.0
    refused = 0.0 if compared or own == "client_gone" else 1.0
    stayed = 0.0 if left else compared
    served = stayed if outcome == "ok" else 0.0
    latency = total = log_total = first = seconds = log_first = between = interval = log_interval = 0.0
    tokens = prompt = completion = 0.0
    if is_timed := own == "client_gone" or (answered > 0 and usage is not None):
        data, histograms = counters.data, counters.histograms(arm)
        latency, total = 1.0, ended.total
        log_total, number = logarithm_and_bin(total)
        data[histograms + _LATENCY + (UNFINISHED if left else number)] += 1.0
        if ended.first is not None:
            first, seconds = 1.0, ended.first
            # A first token that came is no lower bound, whatever happened later.
            log_first, number = logarithm_and_bin(seconds)
            data[histograms + number] += 1.0
        elif left and ended.streamed:
            first, seconds, log_first = 1.0, total, log_total
            data[histograms + UNFINISHED] += 1.0
        if usage is not None and not left:
            tokens, prompt, completion = 1.0, usage.prompt_tokens, usage.completion_tokens
            # One token has no interval between tokens.
            if first and completion > 1:
                between, interval = 1.0, (total - seconds) / (completion - 1)
                log_interval, number = logarithm_and_bin(interval)
                data[histograms + BINS + number] += 1.0
    at = counters.offset(arm, bucket)
    old = counters.record(at)
    # fmt: off
    counters.replace(  # a row of `ROWS` on each line
        at,
        old[0], old[1],
        old[2] + compared, old[3] + answered,
        old[4] + stayed, old[5] + served,
        old[6] + 1.0, old[7] + refused,
        old[8] + 1.0, old[9] + left,
        old[10] + first, old[11] + seconds,
        old[12] + between, old[13] + interval,
        old[14] + latency, old[15] + total,
        old[16] + tokens, old[17] + prompt,
        old[18] + tokens, old[19] + completion,
        old[20] + first, old[21] + log_first,
        old[22] + between, old[23] + log_interval,
        old[24] + latency, old[25] + log_total,
    )
    # fmt: on
    return is_timed
