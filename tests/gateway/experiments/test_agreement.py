"""The metrics of a pair, and the summary of many."""

from __future__ import annotations

from math import inf, isnan

import numpy as np
import pytest

from gateway.experiments.agreement import DIVERGENCES, PAIR_METRICS, UNPAIRED, Estimate, agreement, summarize
from gateway.routing.assignment import BUCKETS

NONE = (np.zeros(len(UNPAIRED)), np.zeros(len(DIVERGENCES)))


@pytest.mark.parametrize(
    ("control", "arm", "divergence", "same"),
    [
        ((1, 2, 3), (1, 2, 3), "never", 1.0),
        ((1, 2, 3), (9, 2, 3), "0", 2 / 3),
        ((1, 2, 3), (1, 9, 9), "1", 1 / 3),
        ((1, 2, 3, 4), (1, 2, 3), "2-3", 0.75),  # one ends where the other goes on
        ((1, 2, 3, 4, 5), (1, 2, 3, 4, 6), "4-7", 0.8),
        ((1,) * 8191 + (2,), (1,) * 8191 + (3,), "4096-8191", 8191 / 8192),
        ((1,) * 9000, (1,) * 9001, "8192+", 9000 / 9001),
    ],
)
def test_first_divergence_and_agreement(
    control: tuple[int, ...], arm: tuple[int, ...], divergence: str, same: float
) -> None:
    for pair in (agreement(control, arm, (0.0, 0.0), (0.0, 0.0)), agreement(arm, control, (0.0, 0.0), (0.0, 0.0))):
        assert DIVERGENCES[pair.divergence] == divergence
        assert pair.metrics[:2] == (float(control == arm), pytest.approx(same))


def test_whose_answer_by_whose_model() -> None:
    pair = agreement((1,), (2,), by_control=(-1.0, -8.0), by_arm=(-4.0, -2.0))
    assert dict(zip(PAIR_METRICS[2:], pair.metrics[2:], strict=True)) == {
        "control_by_control": -1.0,
        "control_by_arm": -4.0,
        "control_difference": -3.0,
        "arm_by_control": -8.0,
        "arm_by_arm": -2.0,
        "arm_difference": 6.0,
    }


def sums(values: np.ndarray) -> np.ndarray:
    """[metrics, (counts, sums), buckets] of pairs [pairs, metrics], each of a unit of its own."""
    made = np.zeros((len(PAIR_METRICS), 2, BUCKETS))
    for number, pair in enumerate(values):
        made[:, 0, number % BUCKETS] += 1
        made[:, 1, number % BUCKETS] += pair
    return made


def test_summary_of_many_pairs() -> None:
    source = np.random.default_rng(0)
    values = source.normal(np.arange(len(PAIR_METRICS)), 1.0, (2000, len(PAIR_METRICS)))
    divergences = np.zeros(len(DIVERGENCES))
    divergences[[0, -1]] = 1500, 500
    pairs = summarize("a", "b", sums(values), np.array([0.0, 3.0, 0.0, 0.0, 0.0]), divergences, alpha=0.05)
    assert (pairs.arm, pairs.pairs, pairs.not_paired) == ("b", 2000, {"failed": 3})
    assert pairs.first_divergence == {"0": 1500, "never": 500}
    of_control, of_arm = pairs.log_likelihoods
    assert (of_control.answers_of, of_arm.answers_of) == ("a", "b")
    estimates = (
        pairs.identical,
        pairs.token_agreement,
        *(getattr(of, name) for of in (of_control, of_arm) for name in ("by_control", "by_arm", "difference")),
    )
    for place, estimate in enumerate(estimates):
        assert estimate.low < place < estimate.high
        assert estimate.high - estimate.low < 0.25
        assert estimate.mean == pytest.approx(values[:, place].mean())


def test_pairing_takes_the_prompts_out_of_a_difference() -> None:
    """Prompts differ much more than models do: the mean of differences is known far better than the means are."""
    source = np.random.default_rng(1)
    prompts = source.normal(-3.0, 1.0, 1000)
    values = np.zeros((1000, len(PAIR_METRICS)))
    values[:, 2], values[:, 3] = prompts, prompts - 0.1 + source.normal(0.0, 0.05, 1000)
    values[:, 4] = values[:, 3] - values[:, 2]
    of_control = summarize("a", "b", sums(values), *NONE, alpha=0.05).log_likelihoods[0]
    assert of_control.difference.high < 0
    assert of_control.by_arm.high > of_control.by_control.low


def test_nothing_is_said_of_nothing_of_few_and_of_what_never_varied() -> None:
    none = summarize("a", "b", sums(np.zeros((0, len(PAIR_METRICS)))), *NONE, alpha=0.05)
    assert none.pairs == 0
    assert isnan(none.identical.mean)
    few = summarize("a", "b", sums(np.random.default_rng(0).random((50, len(PAIR_METRICS)))), *NONE, alpha=0.05)
    assert (few.identical.low, few.identical.high) == (-inf, inf)
    alike = summarize("a", "b", sums(np.ones((500, len(PAIR_METRICS)))), *NONE, alpha=0.05)
    assert alike.identical == Estimate(1.0, -inf, inf)
