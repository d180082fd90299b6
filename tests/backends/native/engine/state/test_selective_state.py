"""The compiled recurrence gives what transformers' functions give, and moves the states on alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer, mamba_selective_state_update
from transformers.models.mamba2.modeling_mamba2 import mamba2_selective_state_update

from backends.native.engine.state.selective_state import KeptDecay, keep_decay, selective_state_update
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = pytest.mark.torch


def refuse(*_: object, **__: object) -> torch.Tensor:
    raise AssertionError("transformers' function was called")


CASES = [
    (dtype, tolerance, size, groups, alike)
    for dtype, tolerance, sizes in ((torch.float32, 1e-5, (16, 20, 64)), (torch.bfloat16, 2**-6, (16, 20)))
    for size in sizes
    for groups, alike in ((0, False), (1, True), (2, True), (2, False))
]
"""Of each the dtype, the tolerance, a row's size, the groups (0: Mamba, else Mamba 2), and whether rows decay alike."""


def compare(dtype: torch.dtype, tolerance: float, size: int, groups: int, alike: bool) -> None:
    """Outputs and states are those of transformers' function."""
    torch.manual_seed(0)
    channels = (4, 70) if groups else (150,)
    theirs = mamba2_selective_state_update if groups else mamba_selective_state_update

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(dtype)

    factors = -torch.rand(4, 1, 1) if alike else -torch.rand(*channels, size)
    # Parts of one tensor, as a layer's projection gives them.
    mixed = (drawn(3, groups, 2 * size) if groups else drawn(3, 2 * size)).chunk(2, dim=-1)
    given = (drawn(3, *channels), drawn(3, *channels), factors.expand(*channels, size), *mixed, torch.randn(channels))
    more = {"dt_bias": torch.randn(channels), "dt_softplus": True, "z": None if groups else drawn(3, *channels)}
    state = torch.randn(3, *channels, size)
    moved = state.clone()
    found = selective_state_update(refuse, moved, *given, **more)
    expected = theirs(state, *given, **more)
    assert found.dtype == expected.dtype == dtype
    torch.testing.assert_close(found, expected, atol=8 * tolerance, rtol=tolerance)
    torch.testing.assert_close(moved, state, atol=4 * tolerance, rtol=tolerance)


@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_equals_transformers(case: tuple[Any, ...]) -> None:
    compare(*case)


def test_states_of_other_dtypes_are_left_to_transformers() -> None:
    row = torch.randn(2, 4)
    with pytest.raises(AssertionError, match="was called"):
        selective_state_update(refuse, torch.zeros(2, 4, 8).double(), row, row, torch.zeros(4, 8), row, row)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decay_that_is_kept_is_the_one_that_is_computed(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mixer = MambaMixer(MambaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1), 0).to(dtype)
    rows = torch.randn(2, 5, 16).to(dtype)
    expected = mixer(rows)
    keep_decay(mixer)
    assert isinstance(mixer.A_log, KeptDecay)
    assert torch.equal(mixer(rows), expected)
    mixer.A_log = KeptDecay(mixer.A_log.decay * 2)
    assert not torch.equal(mixer(rows), expected)


def test_a_logarithm_of_which_code_makes_something_else_stays() -> None:
    class Other(MambaMixer):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows * torch.exp(self.A_log).sum()

    mixer = Other(MambaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1), 0)
    keep_decay(mixer)
    assert isinstance(mixer.A_log, torch.nn.Parameter)
    with pytest.raises(TypeError):
        torch.log(KeptDecay(torch.ones(2, 2)))
