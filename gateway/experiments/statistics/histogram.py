"""Histograms of durations, and quantiles from them with bounds that hold at every look.

Bins have fixed edges, each 5 % above the one before, from 100 microseconds to an hour, so histograms of workers and of
times add up. Bounds are distribution-free: the count of values below the true quantile is binomial with a known rate,
so an e-value tests each edge (Howard and Ramdas: Sequential estimation of quantiles, 2022). They need no moments, so
time-outs and heavy tails cannot break them.

Assumption: observations that are correlated within units count for fewer, `design_effect` times fewer, and that factor
of the mean logarithm (`design_effect`) also bounds the one of the counts below an edge. A threshold on correlated
normal values lowers their correlation, so this is on the safe side for log-normal durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, floor, inf, log
from typing import NamedTuple

import numpy as np

from gateway.experiments.statistics.confidence import Array, Interval, Mean, boundary, prior_precision
from gateway.experiments.statistics.evalue import log_evidence

SHORTEST = 1e-4
"""Seconds: the upper edge of the first bin."""
LONGEST = 3600.0
"""Seconds: values above are in the last bin."""
RATIO = 1.05
"""Of the edges of a bin: the resolution of every quantile."""

_LOG_SHORTEST, _LOG_RATIO = log(SHORTEST), log(RATIO)

BINS = ceil((log(LONGEST) - _LOG_SHORTEST) / _LOG_RATIO) + 2
"""Bin 0 is below `SHORTEST`; bin n covers [EDGES[n - 1], EDGES[n])."""
UNFINISHED = BINS - 1
"""The last bin: an hour and longer, or without an end because the client left first, which ranks as longest."""
EDGES: Array = np.geomspace(SHORTEST, SHORTEST * RATIO ** (BINS - 2), BINS - 1)

# Bounds are narrowest at a fifth of the requests at which those of means are: correlated durations count for fewer.
_EARLIER = 5
_ALPHA = 0.05  # at which Student's t is taken; its ratio to the normal quantile hardly depends on it

_LOWER = np.concatenate(([0.0], EDGES))
_UPPER = np.concatenate((EDGES, [inf]))


def logarithm_and_bin(seconds: float) -> tuple[float, int]:
    """The natural logarithm of a duration as it is counted for means, of at least `SHORTEST`, and its bin."""
    if seconds < SHORTEST:
        return _LOG_SHORTEST, 0
    logarithm = log(seconds)
    return logarithm, UNFINISHED if seconds >= LONGEST else floor((logarithm - _LOG_SHORTEST) / _LOG_RATIO) + 1


def log_seconds(seconds: float) -> float:
    """The logarithm of a duration."""
    return logarithm_and_bin(seconds)[0]


def bin_of(seconds: float) -> int:
    """The bin of a duration."""
    return logarithm_and_bin(seconds)[1]


def quantile(counts: Array, q: float) -> float:
    """The quantile in seconds, interpolated within its bin; infinite in the last bin.

    Args:
        counts: [BINS], not all zero.
        q: in (0, 1).
    """
    reached = np.cumsum(counts)
    wanted = q * float(reached[-1])
    at = int(np.searchsorted(reached, wanted))
    if at == 0:
        return SHORTEST
    if at == UNFINISHED:
        return inf
    within = (wanted - float(reached[at - 1])) / float(counts[at])
    return float(EDGES[at - 1]) * exp(within * _LOG_RATIO)


class Asked(NamedTuple):
    """A quantile that is asked for.

    Attributes:
        counts: [BINS].
        q: in (0, 1).
        alpha: the chance of a miss.
        design_effect: how many observations are worth one independent observation; at least 1.
    """

    counts: Array
    q: float
    alpha: float
    design_effect: float = 1.0


def quantile_bounds(asked: Sequence[Asked]) -> list[Interval]:
    """Quantiles in seconds with bounds; each misses its quantile at any look with a chance of at most its `alpha`."""
    found = []
    for each, evidence in zip(asked, _evidence(asked), strict=True):
        if not each.counts.any():
            found.append(Interval(0.0, -inf, inf))
            continue
        open_ = np.flatnonzero(evidence < -log(each.alpha))
        found.append(Interval(quantile(each.counts, each.q), float(_LOWER[open_[0]]), float(_UPPER[open_[-1]])))
    return found


def quantile_ratios(asked: Sequence[tuple[Asked, Asked]]) -> list[Interval]:
    """Another arm's quantiles divided by the control's; the bounds hold at every look.

    The arms are independent, so the product of their e-values is an e-value, and a pair of quantiles is possible while
    the product is below 1 / `alpha`. That is narrower than two intervals at half of `alpha`.

    Args:
        asked: of the control and of the other arm; q and `alpha` are the same.
    """
    evidence = _evidence([side for pair in asked for side in pair])
    return [_ratio(*pair, *evidence[2 * at : 2 * at + 2]) for at, pair in enumerate(asked)]


def _ratio(control: Asked, other: Asked, ours: Array, theirs: Array) -> Interval:
    """The ratio of two quantiles, from the evidence against each bin."""
    if not (control.counts.any() and other.counts.any()):
        return Interval(1.0, 0.0, inf)
    limit = -log(control.alpha)
    possible = [np.flatnonzero(one < limit - another.min()) for one, another in ((ours, theirs), (theirs, ours))]
    here, there = np.nonzero(np.add.outer(ours[possible[0]], theirs[possible[1]]) < limit)
    at, to = possible[0][here], possible[1][there]
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.nan_to_num(_LOWER[to] / _UPPER[at], nan=0.0).min()
        high = np.where(_LOWER[at] > 0, _UPPER[to] / _LOWER[at], inf).max()
    usual = quantile(control.counts, control.q)
    return Interval(quantile(other.counts, other.q) / usual if usual < inf else 1.0, float(low), float(high))


def weighted(histograms: Array, weights: Array) -> Array:
    """The histogram of a mixture of strata, as of the equivalent number of requests of a single stratum: [BINS].

    Args:
        histograms: [strata, BINS].
        weights: [strata], adding up to 1, or all 0.
    """
    totals = histograms.sum(axis=1)
    used = (weights > 0) & (totals > 0)
    if not used.any():
        return np.zeros(BINS)
    each = weights[used] / totals[used]
    mixture: Array = each @ histograms[used] / float((each**2 * totals[used]).sum())
    return mixture


def log_design_effect(counts: Array, found: Mean) -> float:
    """How many durations are worth one independent duration: at least 1.

    Args:
        counts: [BINS].
        found: the mean of the logarithms of the same durations, with its cluster-robust variance.
    """
    if not found.requests:
        return 1.0
    # No more than if all requests of a bucket were the same, which is also assumed where too few are known to say.
    most = max(1.0, found.requests / found.clusters)
    if found.variance == inf:
        return most
    # A variance that is estimated from few clusters may be larger by as much as Student's t is wider.
    student = boundary(found.requests, _ALPHA, found.clusters - 1) / boundary(found.requests, _ALPHA)
    return min(most, max(1.0, student * found.variance * found.requests / log_variance(counts)))


def log_variance(counts: Array) -> float:
    """The variance of the logarithm of one value, from the bins' middles and width. There is at least one value."""
    total = float(counts.sum())
    middles = _LOG_SHORTEST + (np.arange(BINS) - 0.5) * _LOG_RATIO
    center = float(counts @ middles) / total
    return float(counts @ np.square(middles - center)) / total + _LOG_RATIO**2 / 12


def _evidence(asked: Sequence[Asked]) -> Array:
    """The least log evidence against each quantile at any place within each bin: [asked, BINS]."""
    if not asked:
        return np.zeros((0, BINS))
    counts = np.array([each.counts for each in asked])
    effects, rates, weights = np.array(
        [(each.design_effect, each.q, prior_precision(each.alpha) / _EARLIER) for each in asked]
    ).T[:, :, None]
    # All bins below the first value are alike, and all above the last, so one of each is computed.
    seen = np.flatnonzero(counts.any(axis=0))
    first, last = (max(0, int(seen[0]) - 1), min(UNFINISHED, int(seen[-1]) + 1) + 1) if len(seen) else (0, 1)
    reached = np.cumsum(counts[:, first:last], axis=1) / effects
    total = reached[:, -1:]
    before = np.pad(reached[:, :-1], ((0, 0), (1, 0)))
    # The values of a bin may lie on either side of the quantile: what is nearest to the expected count cannot be
    # excluded.
    found = log_evidence(np.clip(rates * total, before, reached), total, rates, weights)
    return np.pad(found, ((0, 0), (first, BINS - last)), mode="edge")
