"""Ours against transformers' logits warpers, row by row, and on what those leave open."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from backends.native.engine.sampling import logits_warpers
from backends.native.engine.sampling.logits_warpers import top_p, warp_logits
from backends.native.engine.sampling.operations import IMPLEMENTATIONS
from backends.native.protocol.messages import SamplingParams

pytestmark = pytest.mark.torch

PARAMS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=1.7, top_k=5),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.0, top_k=10_000),
    SamplingParams(temperature=1.0, top_p=0.6),
    SamplingParams(temperature=0.8, top_p=0.05),
    SamplingParams(temperature=1.0, top_k=20, top_p=0.7),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=2.0, min_p=0.05, top_p=0.9),
    SamplingParams(temperature=1.0, typical_p=0.5),
    SamplingParams(temperature=1.0, typical_p=0.05),
    SamplingParams(temperature=0.7, top_k=30, top_p=0.9, min_p=0.01, typical_p=0.8),
]


def warpers(p: SamplingParams) -> Any:
    """transformers' own, in the order `generate` applies them."""
    found = [TemperatureLogitsWarper(p.temperature)]
    if p.top_k:
        found.append(TopKLogitsWarper(p.top_k))
    if p.top_p < 1:
        found.append(TopPLogitsWarper(p.top_p))
    if p.min_p:
        found.append(MinPLogitsWarper(p.min_p))
    if p.typical_p < 1:
        found.append(TypicalLogitsWarper(p.typical_p))
    return LogitsProcessorList(found)


def scores(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 200, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.fixture(params=[each for each in IMPLEMENTATIONS if each.name != "triton"], ids=lambda each: each.name)
def mask(request: pytest.FixtureRequest) -> Any:
    if not request.param.supports(torch.zeros(1, 1)):
        pytest.skip("missing tool: g++")
    return request.param.mask_top_k_top_p


@pytest.mark.parametrize("seed", range(5))
def test_a_batch_of_all_kinds_equals_the_warpers_row_by_row(seed: int, mask: Any) -> None:
    given = scores(len(PARAMS), seed)
    warped = warp_logits(given.clone(), PARAMS, mask)
    for row, p in enumerate(PARAMS):
        expected = warpers(p)(torch.zeros(1, 1, dtype=torch.long), given[row : row + 1].clone())[0]
        assert torch.equal(warped[row].isfinite(), expected.isfinite()), p
        torch.testing.assert_close(warped[row], expected)


@pytest.mark.parametrize("p", PARAMS)
def test_a_row_is_the_same_alone(p: SamplingParams, mask: Any) -> None:
    given = scores(len(PARAMS))
    row = PARAMS.index(p)
    alone = warp_logits(given[row : row + 1].clone(), [p], mask)[0]
    assert torch.equal(alone, warp_logits(given.clone(), PARAMS, mask)[row])


@pytest.mark.parametrize(
    "p",
    [
        SamplingParams(temperature=1e-9),
        SamplingParams(temperature=1.0, top_p=1e-9),
        SamplingParams(temperature=1.0, min_p=1.0),
        SamplingParams(temperature=1.0, typical_p=1e-9),
        SamplingParams(temperature=100.0, top_k=1, top_p=1e-9, min_p=1.0, typical_p=1e-9),
    ],
)
def test_something_always_remains(p: SamplingParams, mask: Any) -> None:
    for given in (scores(1), torch.zeros(1, 200), scores(1).masked_fill(torch.arange(200) != 17, float("-inf"))):
        left = warp_logits(given.clone(), [p], mask)
        assert left.isfinite().any()
        assert not left.isnan().any()


def test_equal_scores_stay_or_go_together(mask: Any) -> None:
    given = torch.tensor([[3.0, 3.0, 2.0, 2.0, 0.0]])
    highest = warp_logits(given.clone(), [SamplingParams(temperature=1.0, top_k=1)], mask)
    assert highest.isfinite().tolist() == [[True, True, False, False, False]]
    nucleus = warp_logits(given.clone(), [SamplingParams(temperature=1.0, top_p=0.75)], mask)
    assert nucleus.isfinite().tolist() == [[True, True, True, True, False]]


def test_a_nucleus_is_the_same_however_far_it_reaches() -> None:
    """A peaked row's is among the highest 1,024, a flat row's is not."""
    torch.manual_seed(0)
    scores = torch.randn(3, 5000) * torch.tensor([[8.0], [0.1], [2.0]])
    mass = torch.tensor([[0.9], [0.9], [0.99]])
    ordered = scores.double().softmax(-1).sort(descending=True)
    kept = (ordered.values.cumsum(-1) - ordered.values < mass).sum(-1)
    found = top_p(scores, mass).isfinite()
    assert kept[0] < 1024 < kept[1]
    for row, (order, count) in enumerate(zip(ordered.indices, kept.tolist(), strict=True)):
        assert set(order[:count].tolist()) == set(found[row].nonzero().flatten().tolist())


@pytest.mark.parametrize("width", [0.001, 1.0, 5.0, 40.0, 1000.0])
@pytest.mark.parametrize("mass", [1e-6, 0.3, 0.95, 1.0])
def test_binning_finds_what_sorting_finds(width: float, mass: float) -> None:
    values = torch.randn(4, 30_000, generator=torch.Generator().manual_seed(0)) * width
    values[1, 100:] = float("-inf")
    values[2] = 0.0
    probabilities, asked = values.double().softmax(-1), torch.full((4, 1), mass, dtype=torch.float64)
    found = logits_warpers.lowest_kept(values.double(), probabilities, asked)
    expected = logits_warpers._lowest_kept_by_sorting(values.double(), probabilities, asked)
    if mass < 1.0:
        assert torch.equal(found, expected)
    kept = torch.where(values >= found, probabilities, 0.0).sum(-1)
    assert bool((kept >= mass - 1e-6).all())


@pytest.mark.parametrize("width", [0.001, 1.0, 5.0, 40.0, 1000.0])
@pytest.mark.parametrize("mass", [1e-6, 0.3, 0.95, 1.0])
def test_digits_find_what_sorting_finds(width: float, mass: float) -> None:
    values = torch.randn(5, 3_000, generator=torch.Generator().manual_seed(0)) * width
    values[1, 100:] = float("-inf")
    values[2] = 0.0
    values[3] = values[3].round()  # many are equal, and some are -0.0
    values[4] = -values[4].abs()
    probabilities, asked = values.softmax(-1), torch.full((5, 1), mass)
    found = logits_warpers._lowest_kept_by_digits(values, probabilities, asked)
    expected = logits_warpers._lowest_kept_by_sorting(values.double(), probabilities.double(), asked.double())
    if mass < 1.0:
        assert torch.equal(found, expected.float())
    assert bool((torch.where(values >= found, probabilities, 0.0).sum(-1) >= mass - 1e-5).all())


def test_digits_of_a_row_that_is_not_a_number_stay_within_bounds() -> None:
    values = torch.full((1, 40), float("nan"))
    logits_warpers._lowest_kept_by_digits(values, values, torch.tensor([[0.5]]))
