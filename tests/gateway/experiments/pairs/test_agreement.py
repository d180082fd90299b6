"""The metrics of a pair, and the summary of many."""

from __future__ import annotations

from math import exp, inf, isnan

import numpy as np
import pytest

from gateway.experiments.pairs.agreement import (
    DIVERGENCES,
    PAIR_METRICS,
    UNPAIRED,
    Pairs,
    Scores,
    Speed,
    agreement,
    summarize,
)
from gateway.routing.assignment import BUCKETS

UNSCORED = (Scores(0.0), Scores(0.0))
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
    for pair in (agreement(control, arm, UNSCORED, UNSCORED), agreement(arm, control, UNSCORED, UNSCORED)):
        assert DIVERGENCES[pair.divergence] == divergence
        assert pair.value("identical") == float(control == arm)
        assert pair.value("token_agreement") == pytest.approx(same)


def test_whose_answer_by_whose_model() -> None:
    pair = agreement((1,), (2,), (Scores(-1.0), Scores(-8.0)), (Scores(-4.0), Scores(-2.0)))
    assert dict(zip(PAIR_METRICS[3:9], pair.metrics[3:9], strict=True)) == {
        "control_by_control": -1.0,
        "control_by_arm": -4.0,
        "control_difference": -3.0,
        "arm_by_control": -8.0,
        "arm_by_arm": -2.0,
        "arm_difference": 6.0,
    }
    assert pair.largest_difference == 6.0


def test_top_tokens_are_compared_on_the_same_prefix() -> None:
    """Both models read the control's answer: that they would go other ways after it has diverged does not count."""
    by_control = Scores(-1.0, (1, 2, 3, 4)), Scores(-1.0, (7,) * 4)
    by_arm = Scores(-1.0, (1, 2, 9, 4)), Scores(-1.0, (8,) * 4)
    values = dict(zip(PAIR_METRICS, agreement((1, 2, 3, 4), (1, 5, 6, 7), by_control, by_arm).metrics, strict=True))
    assert (values["top_token_agreement"], values["token_agreement"]) == (0.75, 0.25)
    assert agreement((1,), (1,), UNSCORED, by_arm).metrics[PAIR_METRICS.index("top_token_agreement")] is None


def test_length_and_speed_of_both_answers() -> None:
    pair = agreement((1, 2), (1,), UNSCORED, UNSCORED, (Speed(0.5, 0.1), Speed(0.25, None)))
    assert pair.metrics[9:] == (2, 0.5, 0.1, 1, 0.25, None)


def sums(values: np.ndarray) -> np.ndarray:
    """[metrics, (counts, sums), buckets] of pairs [pairs, metrics], each of a unit of its own."""
    made = np.zeros((len(PAIR_METRICS), 2, BUCKETS))
    for number, pair in enumerate(values):
        made[:, 0, number % BUCKETS] += 1
        made[:, 1, number % BUCKETS] += pair
    return made


def summary(values: np.ndarray, alpha: float = 0.05, margin: float = 0.02, dropped: int = 0) -> Pairs:
    unpaired = np.array([float(dropped), 3.0, 0.0, 0.0, 0.0])
    return summarize("a", "b", sums(values), unpaired, np.zeros(len(DIVERGENCES)), alpha, margin)


def pairs_of(count: int, *, identical: float = 1.0, difference: float = 0.0, noise: float = 0.0) -> np.ndarray:
    """Pairs [pairs, metrics] of which a share is identical, and of which each model scores answers differently."""
    source = np.random.default_rng(0)
    values = np.zeros((count, len(PAIR_METRICS)))
    values[:, 0] = values[:, 1] = values[:, 2] = np.arange(count) < identical * count
    values[:, 3] = values[:, 7] = -1.0
    values[:, 5] = source.normal(difference, noise, count)
    values[:, 8] = -source.normal(difference, noise, count)
    values[:, 4], values[:, 6] = -1.0 + values[:, 5], -1.0 - values[:, 8]
    values[:, 9:] = 10.0, 0.1, 0.01, 12.0, 0.2, 0.02
    return values


def test_summary_of_many_pairs() -> None:
    source = np.random.default_rng(0)
    values = source.normal(np.arange(len(PAIR_METRICS)), 1.0, (2000, len(PAIR_METRICS)))
    values[:, :3] = source.random((2000, 3)) < 0.9
    values[:, [3, 4, 6, 7]] -= 20
    divergences = np.zeros(len(DIVERGENCES))
    divergences[[0, -1]] = 1500, 500
    unpaired = np.array([0.0, 3.0, 0.0, 0.0, 0.0])
    pairs = summarize("a", "b", sums(values), unpaired, divergences, 0.05, 0.02)
    assert (pairs.arm, pairs.pairs, pairs.not_paired) == ("b", 2000, {"failed": 3})
    assert pairs.first_divergence == {"0": 1500, "never": 500}
    of_control, of_arm = pairs.log_likelihoods
    assert (of_control.answers_of, of_arm.answers_of) == ("a", "b")
    assert [speed.answers_of for speed in pairs.speeds] == ["a", "b"]
    estimates = (
        pairs.identical,
        pairs.token_agreement,
        pairs.top_token_agreement,
        *(getattr(of, name) for of in (of_control, of_arm) for name in ("by_control", "by_arm", "difference")),
        *(
            getattr(of, name)
            for of in pairs.speeds
            for name in ("tokens", "time_to_first_token", "inter_token_latency")
        ),
    )
    truths = [0.9] * 3 + [-17, -16, 5, -14, -13, 8] + list(range(9, 15))
    for place, (truth, estimate) in enumerate(zip(truths, estimates, strict=True)):
        assert estimate.low < truth < estimate.high
        assert estimate.high - estimate.low < 0.25
        assert estimate.mean == pytest.approx(values[:, place].mean())
    assert of_control.perplexity_factor.mean == pytest.approx(exp(-of_control.difference.mean))
    assert of_control.perplexity_factor.low == pytest.approx(exp(-of_control.difference.high))
    assert pairs.speeds[1].tokens_per_second.mean == pytest.approx(1 / pairs.speeds[1].inter_token_latency.mean)


def test_pairing_takes_the_prompts_out_of_a_difference() -> None:
    """Prompts differ much more than models do: the mean of differences is known far better than the means are."""
    source = np.random.default_rng(1)
    prompts = source.normal(-3.0, 1.0, 1000)
    values = np.zeros((1000, len(PAIR_METRICS)))
    values[:, 3], values[:, 4] = prompts, prompts - 0.1 + source.normal(0.0, 0.05, 1000)
    values[:, 5] = values[:, 4] - values[:, 3]
    of_control = summary(values).log_likelihoods[0]
    assert of_control.difference.high < 0
    assert of_control.by_arm.high > of_control.by_control.low


def test_nothing_is_said_of_nothing_and_of_what_never_varied() -> None:
    none = summary(np.zeros((0, len(PAIR_METRICS))))
    assert (none.pairs, none.verdict.word, none.verdict.reason) == (0, "keep collecting", "No pair was made yet.")
    assert isnan(none.identical.mean)
    few = summary(np.random.default_rng(0).random((50, len(PAIR_METRICS))))
    assert (few.speeds[0].tokens.low, few.speeds[0].tokens.high) == (-inf, inf)
    alike = summary(pairs_of(500))
    assert (alike.log_likelihoods[0].difference.low, alike.log_likelihoods[0].difference.high) == (-inf, inf)


def test_an_identical_copy_is_the_same_after_few_pairs() -> None:
    pairs = summary(pairs_of(255))
    assert (pairs.identical.mean, pairs.identical.high) == (1.0, 1.0)
    assert pairs.identical.low >= 0.97
    assert pairs.verdict.word == "same"
    assert pairs.verdict.reason == f"At least {pairs.identical.low:.1%} of the answers are identical."
    early = summary(pairs_of(60)).verdict
    assert early.word == "keep collecting"
    # What it asks for is what it needs.
    assert early.pairs_needed is not None
    assert summary(pairs_of(60 + early.pairs_needed)).verdict.word == "same"
    assert summary(pairs_of(60 + early.pairs_needed - 1)).verdict.word == "keep collecting"


@pytest.mark.parametrize(
    ("pairs", "word"),
    [
        (pairs_of(400, identical=0.7, difference=-0.003, noise=0.02), "as good"),
        (pairs_of(400, identical=0.7, difference=-0.06, noise=0.05), "differs"),
        (pairs_of(400, identical=0.7, difference=-0.018, noise=0.1), "keep collecting"),
    ],
)
def test_a_verdict_by_log_likelihoods(pairs: np.ndarray, word: str) -> None:
    found = summary(pairs).verdict
    assert found.word == word
    assert (found.pairs_needed is None) == (word != "keep collecting")
    if word != "keep collecting":
        assert "nats per token" in found.reason


def test_intervals_of_shares_stay_between_0_and_1() -> None:
    for share in (0.0, 0.01, 0.5, 0.97, 1.0):
        for count in (1, 20, 150, 3000):
            found = summary(pairs_of(count, identical=share)).identical
            assert 0 <= found.low <= found.mean <= found.high <= 1


def test_dropped_pairs_are_a_caveat() -> None:
    assert summary(pairs_of(255)).verdict.caveat == ""
    caveat = summary(pairs_of(255), dropped=45).verdict.caveat
    assert caveat.startswith("45 of 303 drawn answers were not paired")
    assert "not random" in caveat
