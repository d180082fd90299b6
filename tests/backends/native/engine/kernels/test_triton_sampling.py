"""Triton's noise against torch's, in Triton's interpreter (`tests/conftest.py`)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from backends.native.engine.sampling import accelerated, logits_warpers
from backends.native.engine.sampling.gumbel import perturb
from tests.missing_tools import missing

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason=missing("triton")),
]


@pytest.mark.parametrize("count", [1, 2500])
def test_it_equals_torchs(count: int) -> None:
    seeds, positions = [1, 2**64 - 1, 3], [0, 6, 70_000]
    found = perturb(torch.zeros(3, count), seeds, positions, accelerated.add_gumbel_noise)
    torch.testing.assert_close(found, perturb(torch.zeros(3, count), seeds, positions), rtol=1e-6, atol=1e-6)


def test_masked_scores_stay_masked_and_others_get_the_same_noise() -> None:
    scores = torch.full((2, 40), float("-inf"))
    scores[:, ::3] = 1.0
    scores[1, 6] = float("nan")
    expected = scores + perturb(torch.zeros(2, 40), [5, 6], [7, 8], accelerated.add_gumbel_noise)
    found = perturb(scores, [5, 6], [7, 8], accelerated.add_gumbel_noise)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("wrong", ["add_gumbel_noise", "mask_top_k_top_p"])
def test_the_check_of_a_device_accepts_it_and_notices_a_wrong_one(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert accelerated.why_not(cpu) is None
    routine = accelerated._routine

    def flipped(name: str) -> Any:
        right = routine(name)
        return right if name != wrong else lambda scores, *given: right(scores.flip(0), *given)

    monkeypatch.setattr(accelerated, "_routine", flipped)
    assert "differs from the reference" in (accelerated.why_not(cpu) or "")


@pytest.mark.parametrize("spread", [0.1, 5.0])
@pytest.mark.parametrize("count", [1, 17, 9000])
def test_it_keeps_the_highest_and_of_these_the_nucleus(count: int, spread: float) -> None:
    torch.manual_seed(0)
    k, p = [0, 5, 700, 0, 40], [0.9, 1.0, 0.5, 1.0, 0.999]
    scores = torch.randn(5, count) * spread
    scores[torch.rand_like(scores) < 0.2] = float("-inf")
    scores[:, 0] = 1.0
    scores[4].round_()  # ties, and zeros of both signs
    found, expected = scores.clone(), scores.clone()
    accelerated.mask_top_k_top_p(found, k, p)
    logits_warpers.mask_top_k_top_p(expected, k, p)
    assert (found != expected).sum() <= 2  # sums in float32


def test_nan_stays_beside_the_highest() -> None:
    scores = torch.tensor([[1.0, float("nan"), 3.0, 2.0], [1.0, -float("nan"), 3.0, 2.0]])
    accelerated.mask_top_k_top_p(scores, [1, 1], [1.0, 0.5])
    assert scores[:, 1].isnan().all()
