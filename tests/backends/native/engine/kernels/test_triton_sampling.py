"""Triton's noise against torch's, in Triton's interpreter (`tests/conftest.py`)."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from backends.native.engine.sampling import accelerated
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


def test_the_check_of_a_device_accepts_it_and_notices_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert accelerated.why_not(cpu) is None
    right = accelerated._routine()
    monkeypatch.setattr(accelerated, "_routine", lambda: lambda scores, keys: right(scores, keys.flip(1).contiguous()))
    assert "differs from the reference" in (accelerated.why_not(cpu) or "")
