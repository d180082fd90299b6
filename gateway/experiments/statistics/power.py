"""How much traffic an experiment needs: for an effect, and until an open comparison is decided. Pure arithmetic.

An interval after N requests is sqrt(boundary(N) * variance) wide to either side, where the variance of a difference is
v / (N * share) added over both arms, and v is the variance of one request (times the design effect, if requests of a
unit are correlated).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf, sqrt

from gateway.experiments.statistics.confidence import Interval, boundary

POWER_QUANTILE = 0.8416
"""Of the normal distribution at 0.8: an effect of the detectable size is found with this power at the last look. Looks
before it only add to that.
"""
_MOST = 1e12
"""Requests: what needs more is out of reach."""


def detectable_effect(variance: float, shares: tuple[float, float], requests: float, alpha: float) -> float:
    """The least difference that is found, with a power of 80 %, after so many requests of both arms.

    Args:
        variance: of one request; p * (1 - p) for a rate, the variance of the logarithm for a time (whose difference is
            then the logarithm of the ratio).
        shares: of the control and of the arm, of the requests of both.
        requests: of both arms together.
        alpha: the chance of a false word, of this metric and arm.
    """
    if not requests:
        return inf
    error = sqrt(variance * sum(1 / share for share in shares) / requests)
    return error * (sqrt(boundary(requests, alpha)) + POWER_QUANTILE)


def requests_for(effect: float, variance: float, shares: tuple[float, float], alpha: float) -> int | None:
    """How many requests of both arms find a difference with a power of 80 %; None: out of reach.

    The arguments are those of `detectable_effect`; `effect` is not 0.
    """
    return _least(lambda requests: detectable_effect(variance, shares, requests, alpha) <= abs(effect))


def requests_needed(found: Interval, requests: float, margin: float, alpha: float) -> int | None:
    """About how many more requests until an interval excludes 0 or lies within the margin, if the estimate stays.

    Args:
        found: the interval after `requests` requests; 0 is in it, and it is wider than the margin.
        requests: of both arms.
        margin: the difference that counts as none.
        alpha: the chance of a miss of the interval.

    Returns:
        None if that is not known: the interval is infinite, or out of reach.
    """
    half = (found.high - found.low) / 2
    target = max(abs(found.estimate), margin - abs(found.estimate))
    if not 0 < half < inf or not target:
        return None
    per_request = half * half * requests / boundary(requests, alpha)
    total = _least(lambda count: per_request * boundary(count, alpha) / count <= target * target)
    return None if total is None else max(0, ceil(total - requests))


def days_until(requests: float, per_day: float) -> float | None:
    """How long so many requests take at a rate; None without traffic."""
    return requests / per_day if per_day else None


def _least(is_enough: Callable[[float], bool]) -> int | None:
    """The least number of requests that is enough; None if it is above `_MOST`. More are enough as well."""
    low, high = 1.0, 2.0
    while not is_enough(high):
        low, high = high, 2 * high
        if high > _MOST:
            return None
    while high - low > max(1.0, high / 1000):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return ceil(high)
