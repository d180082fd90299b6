"""The noise: exact bits, independence of the batch, and that it is Gumbel noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from backends.native.engine.sampling.gumbel import gumbel, perturb, random_bits
from backends.native.engine.sampling.operations import IMPLEMENTATIONS

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
_MASK = 0xFFFFFFFF


def murmur_finalizer(value: int) -> int:
    """MurmurHash3's fmix32, with Python's integers."""
    value = (value ^ (value >> 16)) * 0x85EBCA6B & _MASK
    value = (value ^ (value >> 13)) * 0xC2B2AE35 & _MASK
    return value ^ (value >> 16)


def splitmix(value: int) -> int:
    wide = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & wide
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & wide
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & wide
    return value ^ (value >> 31)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63, 2**64 - 1])
@pytest.mark.parametrize("position", [0, 7, 100_000])
def test_bits_are_those_of_exact_integer_arithmetic(seed: int, position: int) -> None:
    key = splitmix(splitmix(seed) ^ position)
    low, high = key & _MASK, key >> 32
    expected = [murmur_finalizer(murmur_finalizer((token + low) & _MASK) ^ high) for token in range(200)]
    assert [bits & _MASK for bits in random_bits([seed], [position], 200, CPU)[0].tolist()] == expected


def test_a_row_is_the_same_in_any_batch() -> None:
    alone = gumbel([5], [9], 100, CPU)[0]
    assert torch.equal(gumbel([1, 5, 5], [9, 9, 8], 100, CPU)[1], alone)
    assert not torch.equal(gumbel([5], [10], 100, CPU)[0], alone)
    assert not torch.equal(gumbel([6], [9], 100, CPU)[0], alone)


def test_noise_has_the_moments_of_a_gumbel_distribution() -> None:
    noise = gumbel(range(200), [3] * 200, 5000, CPU).double()
    assert noise.isfinite().all()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.02)
    assert float(noise.max()) > 11  # a million draws: the upper tail is not cut off


def test_rows_and_positions_do_not_correlate() -> None:
    by_seed = gumbel(range(50), [0] * 50, 20_000, CPU)
    by_position = gumbel([0] * 50, range(50), 20_000, CPU)
    for noise in (by_seed, by_position):
        correlations = torch.corrcoef(noise) - torch.eye(50)
        assert float(correlations.abs().max()) < 0.04


@pytest.fixture(params=[each for each in IMPLEMENTATIONS if each.name != "triton"], ids=lambda each: each.name)
def add_noise(request: pytest.FixtureRequest) -> Any:
    if not request.param.supports(torch.zeros(1, 1)):
        pytest.skip("missing tool: g++")
    return request.param.add_gumbel_noise


@pytest.mark.parametrize("kept", [3, 100, 399, 400])
def test_scores_get_the_same_noise_whether_few_or_many_are_left(kept: int, add_noise: Any) -> None:
    scores = torch.full((2, 400), float("-inf"))
    scores[:, :kept] = torch.linspace(-1, 1, kept)
    expected = scores + perturb(torch.zeros(2, 400), [5, 6], [7, 8], add_noise)
    assert torch.equal(perturb(scores, [5, 6], [7, 8], add_noise), expected)


@pytest.mark.parametrize("vocab", [1, 100, 100_000])
def test_implementations_differ_by_the_last_bits_of_logarithms(vocab: int, add_noise: Any) -> None:
    found = perturb(torch.zeros(3, vocab), [1, 2**64 - 1, 3], [0, 6, 70_000], add_noise)
    expected = gumbel([1, 2**64 - 1, 3], [0, 6, 70_000], vocab, CPU)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_nan_stays_nan(add_noise: Any) -> None:
    scores = torch.zeros(2, 50)
    scores[1, 20] = float("nan")
    assert perturb(scores, [1, 2], [3, 4], add_noise).isnan().nonzero().tolist() == [[1, 20]]
