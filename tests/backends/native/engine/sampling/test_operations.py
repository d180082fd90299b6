"""The choice between the compiled and the torch implementation of sampling."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backends.native.engine.kernels import gumbel
from backends.native.engine.sampling.operations import operations_for
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = pytest.mark.torch


@needs_compiler
def test_contiguous_float32_on_the_cpu_is_sampled_by_compiled_code() -> None:
    assert operations_for(torch.zeros(2, 8)).name == "compiled"


@pytest.mark.parametrize(
    "scores",
    [
        torch.zeros(4, 8).T,
        torch.zeros(8, 8, dtype=torch.float64),
        torch.zeros(8, 8)[:, :4],
        torch.zeros(1, 8, device="meta"),
    ],
    ids=["transposed", "float64", "a part of the columns", "another device"],
)
def test_other_scores_are_sampled_by_torch(scores: Tensor) -> None:
    assert operations_for(scores).name == "torch"


def test_without_a_compiled_kernel_torch_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gumbel, "_function", lambda: None)
    assert operations_for(torch.zeros(2, 8)).name == "torch"
