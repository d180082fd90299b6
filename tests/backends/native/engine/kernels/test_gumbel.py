"""The compiled noise over long rows, by several threads; `sampling/test_gumbel` compares it with torch's."""

from __future__ import annotations

import pytest
import torch

from backends.native.engine.kernels.gumbel import add_gumbel_noise
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = [pytest.mark.torch, needs_compiler]


def noise(vocab: int) -> torch.Tensor:
    scores, keys = torch.zeros(3, vocab), torch.tensor([[1, 8], [-2, 5], [3, 10]], dtype=torch.int32)
    add_gumbel_noise(scores, keys)
    return scores


@pytest.mark.parametrize("vocab", [1, 15, 17, 2**14 - 1, 2**14 + 1, 3 * 2**14])
def test_a_token_gets_the_same_noise_in_a_vocabulary_of_any_size(vocab: int) -> None:
    """Rows are cut into vectors of 16 tokens and chunks of 2^14."""
    found = noise(vocab)
    assert found.isfinite().all()
    assert torch.equal(found, noise(2**16)[:, :vocab])


def test_threads_share_the_work_without_a_trace() -> None:
    alone = noise(50_000)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(noise(50_000), alone)
    finally:
        torch.set_num_threads(before)


def test_masked_tokens_stay_masked() -> None:
    scores, keys = torch.full((1, 40), float("-inf")), torch.zeros(1, 2, dtype=torch.int32)
    scores[0, 33] = 1.0
    add_gumbel_noise(scores, keys)
    assert scores.isfinite().nonzero().tolist() == [[0, 33]]
    assert scores[0, 33] != 1.0
