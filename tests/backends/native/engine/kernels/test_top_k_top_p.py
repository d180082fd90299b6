"""The compiled top_k and top_p beside the same by sorting; `test_logits_warpers` has the definitions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backends.native.engine.kernels.top_k_top_p import mask_top_k_top_p
from backends.native.engine.sampling import logits_warpers
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = [pytest.mark.torch, needs_compiler]

NEVER = float("-inf")


def keep_nucleus(scores: Tensor, mass: Tensor) -> None:
    mask_top_k_top_p(scores, [0] * len(scores), mass.flatten().tolist())


@pytest.mark.parametrize("spread", [0.01, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("vocab", [1, 2, 17, 5000])
def test_the_nucleus_is_the_one_that_sorting_finds(spread: float, vocab: int) -> None:
    torch.manual_seed(0)
    mass = torch.tensor([[1e-6], [0.1], [0.5], [0.9], [0.99]])
    scores = torch.randn(len(mass), vocab) * spread
    scores[torch.rand_like(scores) < 0.2] = NEVER
    scores[:, 0] = 1.0
    ordered, order = scores.double().sort(descending=True)
    before = scores.double().softmax(-1).gather(1, order).cumsum(-1).roll(1)
    before[:, 0] = 0
    expected = torch.zeros_like(scores, dtype=torch.bool).scatter(1, order, (before < mass) & ordered.isfinite())
    keep_nucleus(scores, mass)
    assert torch.equal(scores.isfinite(), expected)


@pytest.mark.parametrize("spread", [0.5, 5.0])
def test_it_agrees_with_the_torch_version(spread: float) -> None:
    torch.manual_seed(0)
    scores, mass = torch.randn(4, 3000) * spread, torch.tensor([[0.2], [0.6], [0.8], [0.95]])
    lowest = logits_warpers.lowest_kept(scores, scores.softmax(-1), mass)
    expected = logits_warpers._mask_below(scores, lowest)
    keep_nucleus(scores, mass)
    assert (scores.isfinite() != expected.isfinite()).sum() <= 2  # torch sums in float32


def test_ties_stay_together() -> None:
    scores = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0, NEVER]])
    keep_nucleus(scores, torch.tensor([[0.8]]))
    assert scores.tolist() == [[3.0, 1.0, 1.0, 1.0, NEVER, NEVER]]


@pytest.mark.parametrize("place", [0, 3])
def test_nan_is_left_for_the_sampler_to_notice(place: int) -> None:
    scores = torch.randn(2, 8)
    scores[0, place] = float("nan")
    keep_nucleus(scores, torch.full((2, 1), 0.5))
    assert scores[0, place].isnan()
    assert not scores[1].isnan().any()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocab", [1, 17, 5000])
def test_it_keeps_the_highest(vocab: int, ties: bool) -> None:
    torch.manual_seed(0)
    counts = [0, 1, 2, 15, 50, 4999, 5000, 10**12]
    scores = torch.randn(len(counts), vocab)
    scores[torch.rand_like(scores) < 0.2] = NEVER
    if ties:
        scores.mul_(2).round_()
    expected = scores.clone()
    for row, count in zip(expected, counts, strict=True):
        if 0 < count < vocab:
            row[row < row.topk(count).values[-1]] = NEVER
    mask_top_k_top_p(scores, counts, [1.0] * len(counts))
    assert torch.equal(scores, expected)


def test_top_k_comes_before_top_p() -> None:
    torch.manual_seed(0)
    scores, mass = torch.randn(3, 4000), torch.tensor([[0.3], [0.9], [1.0]])
    expected = logits_warpers.top_k(scores, torch.tensor([[20.0], [700.0], [5.0]]), most=700)
    for row in range(2):
        expected[row] = logits_warpers.top_p(expected[row, None], mass[row, None])
    mask_top_k_top_p(scores, [20, 700, 5], mass.flatten().tolist())
    assert torch.equal(scores, expected)


def test_nan_stays_beside_the_highest() -> None:
    scores = torch.tensor([[1.0, float("nan"), 3.0, 2.0]])
    mask_top_k_top_p(scores, [1], [1.0])
    assert scores[0, 1].isnan()
    assert scores[0, 2] == 3.0
