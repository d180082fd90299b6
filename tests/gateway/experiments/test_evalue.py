"""E-values for rates."""

from __future__ import annotations

from math import lgamma

import numpy as np
import pytest

from gateway.experiments.evalue import log_evidence, log_gamma


def test_log_gamma() -> None:
    places = np.array([1e-3, 0.5, 1.0, 2.0, 7.7, 150.0, 1e6, 1e9])
    assert log_gamma(places) == pytest.approx([lgamma(place) for place in places], rel=1e-10, abs=1e-10)


def test_evidence_is_a_fair_bet() -> None:
    """Under the null hypothesis the expected wealth after any number of observations is 1."""
    total, rate = 12, 0.3
    below = np.arange(total + 1.0)
    chances = np.exp(
        [
            lgamma(total + 1)
            - lgamma(k + 1)
            - lgamma(total - k + 1)
            + k * np.log(rate)
            + (total - k) * np.log(1 - rate)
            for k in below
        ]
    )
    assert chances @ np.exp(log_evidence(below, total, rate, 20.0)) == pytest.approx(1.0)
