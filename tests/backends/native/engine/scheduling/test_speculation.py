"""Which drafts a step verifies: what steps cost, how often drafts are right, and what follows from both."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from backends.native.engine.scheduling.scheduler import MOST_ROWS
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.scheduling.speculation import Rate, Speculation, StepCosts
from backends.native.protocol.messages import Submit


def sequence(tokens: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2), new: int = 100, **fields: object) -> Sequence:
    """In decode: its last token was generated and is not computed yet."""
    made = Sequence(0, Submit(0, tokens[:-1], new, **fields), 0)  # type: ignore[arg-type]
    made.tokens.append(tokens[-1])
    made.computed = len(tokens) - 1
    return made


def taught(row: float, steps: int = 400) -> Speculation:
    """That has seen steps of a second and `row` seconds for each further row."""
    speculation = Speculation()
    for step in range(steps):
        rows = 1 + step % 4
        speculation._costs.add(rows, 1 + row * (rows - 1))
    return speculation


@pytest.mark.parametrize("row", [0.0, 0.02, 0.5])
def test_costs_are_fitted_to_steps(row: float) -> None:
    costs = taught(row)._costs
    assert costs.row == pytest.approx(row, abs=0.04)
    assert costs.step(1) == pytest.approx(1, abs=0.05)


def test_equal_steps_say_nothing_about_a_further_row() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.add(1, 0.2)
    assert costs.row == pytest.approx(0.02)


def test_a_disturbed_step_counts_little() -> None:
    costs = taught(0.02)._costs
    costs.add(1, 1000.0)
    assert costs.step(1) < 1.2


def test_a_rate_follows_its_latest_trials_and_returns_to_the_prior() -> None:
    rate = Rate()
    for _ in range(200):
        rate.add(0, 1)
    assert rate.estimate(0.7) < 0.05
    for _ in range(400):
        rate.forget()
    assert rate.estimate(0.7) > 0.65


def test_drafts_of_a_sequence_in_decode() -> None:
    one = sequence()
    Speculation().plan([one])
    assert one.drafts[:3] == (3, 4, 5)


@pytest.mark.parametrize("state", ["prefill", "first", "last"])
def test_no_drafts_in_prefill_or_for_the_last_token(state: str) -> None:
    one = sequence(new=2 if state == "last" else 100)
    if state == "prefill":
        one.computed -= 1
    elif state == "first":
        one.prompt_length += 1
    one.drafts = (9,)
    Speculation().plan([one])
    assert one.drafts == ()


def test_drafts_end_before_an_end_token() -> None:
    one = sequence(eos_token_ids=(5,), stop_token_ids=(6,))
    Speculation().plan([one])
    assert one.drafts == (3, 4)


def test_dear_rows_and_wrong_drafts_are_not_verified() -> None:
    dear = taught(0.9)
    one = sequence()
    dear.plan([one])
    assert one.drafts == ()
    cheap = taught(0.02)
    cheap.plan([one])
    assert len(one.drafts) > 5
    for _ in range(60):
        cheap.plan([one])
        cheap.count(Work(one, one.computed, 2, True, one.drafts[:1]), 0)
    planned = 0
    for _ in range(60):
        cheap.plan([one])
        planned += len(one.drafts)
        cheap.count(Work(one, one.computed, 1 + len(one.drafts), True, one.drafts), 0)
    assert planned * 0.02 < 60 * 0.01, "trying again costs less than a hundredth"


def test_long_matches_are_trusted_where_short_ones_fail() -> None:
    speculation, short = taught(0.3), sequence()
    for _ in range(60):
        speculation.plan([short])
        speculation.count(Work(short, short.computed, 2, True, (3,)), 0)
    speculation.plan([short])
    assert short.drafts == ()
    long = sequence((*range(1, 12), *range(1, 9)))
    speculation.plan([long])
    assert long.drafts[0] == 9


def test_a_step_of_many_sequences_verifies_fewer_drafts() -> None:
    few, many = [sequence() for _ in range(2)], [sequence() for _ in range(MOST_ROWS - 2)]
    taught(0.05).plan(few)
    taught(0.05).plan(many)
    assert sum(len(one.drafts) for one in few) <= MOST_ROWS - 2
    assert sum(len(one.drafts) for one in many) <= 2


def test_counts_are_of_works_with_drafts() -> None:
    speculation, one = Speculation(), sequence()
    speculation.count(Work(one, 10, 1, True), 0)
    speculation.count(Work(one, 10, 4, True, (3, 4, 5)), 2)
    assert (speculation.drafts, speculation.drafted, speculation.accepted) == (1, 3, 2)


class Source:
    """A smaller model whose drafts are all 7, in passes of `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.costs = StepCosts()
        self.costs.add(1, seconds)
        self.wanted: list[int] = []

    def draft(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        self.wanted += wanted.values()
        return {one: [7] * most for one, most in wanted.items()}

    def forget(self, sequence: Sequence) -> None:
        raise NotImplementedError

    sleep = wake = None


@pytest.mark.parametrize(("seconds", "asked"), [(0.05, True), (0.9, False)])
def test_a_smaller_model_is_asked_if_its_passes_pay_and_else_the_text(seconds: float, asked: bool) -> None:
    speculation, one = taught(0.02), sequence()
    speculation.source = source = Source(seconds)  # type: ignore[assignment]
    for _ in range(20):
        speculation._source_rate.add(4, 1)  # more often right than a match that was never tried
    speculation.plan([one])
    assert bool(source.wanted) is asked
    assert set(one.drafts) == {7} if asked else one.drafts[:3] == (3, 4, 5)


@pytest.mark.parametrize(
    ("seconds", "depths"),
    [
        (0.05, {1: 7, 8: 2}),  # eight sequences have room for two drafts each
        (0.7, {1: 1, 8: 1}),  # a second pass, of drafts that are less likely, would not pay
        (0.9, {1: 0, 8: 0}),
    ],
)
def test_a_pass_is_for_all_sequences_that_together_pay_for_it(seconds: float, depths: dict[int, int]) -> None:
    for count, depth in depths.items():
        speculation = taught(0.02)
        speculation.source = source = Source(seconds)  # type: ignore[assignment]
        source.costs = StepCosts()
        for rows in (1, 8) * 200:  # as long for eight sequences as for one
            source.costs.add(rows, seconds)
        for _ in range(20):
            speculation._source_rate.add(4, 1)
        speculation.plan([sequence((number, 11, 12)) for number in range(count)])
        assert source.wanted == [depth] * count if depth else not source.wanted


def test_the_likelier_drafts_are_taken_and_each_kind_learns_its_own_rate() -> None:
    speculation, one = taught(0.02), sequence()
    speculation.source = source = Source(0.05)  # type: ignore[assignment]
    for _ in range(20):
        speculation._source_rate.add(4, 1)
    for _ in range(40):
        speculation.plan([one])
        speculation.count(Work(one, one.computed, 1 + len(one.drafts), True, one.drafts), 0)
        if one.drafts[:1] != (7,):
            break
    assert one.drafts[:3] == (3, 4, 5)
    assert speculation._drafters[one].source_rate.estimate(0.5) < 0.7
    assert sum(rate.tried for rate in speculation._drafters[one].rates) == 1
    assert len(source.wanted) < 10
