"""The compiled recurrence gives what transformers' functions give, and moves the states on alike."""

from __future__ import annotations

import pytest
import torch
from transformers.models.mamba.modeling_mamba import mamba_selective_state_update
from transformers.models.mamba2.modeling_mamba2 import mamba2_selective_state_update

from backends.native.engine.kernels import jit
from backends.native.engine.state.selective_state import selective_state_update

pytestmark = pytest.mark.torch


def refuse(*_: object, **__: object) -> torch.Tensor:
    raise AssertionError("transformers' function was called")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-6)])
@pytest.mark.parametrize("size", [16, 20])
@pytest.mark.parametrize("groups", [0, 1, 2])
def test_it_equals_transformers(dtype: torch.dtype, tolerance: float, size: int, groups: int) -> None:
    """Without groups Mamba, with them Mamba 2."""
    if jit.find_compiler() is None:
        pytest.skip("missing tool: g++")
    torch.manual_seed(0)
    channels = (4, 6) if groups else (24,)
    theirs = mamba2_selective_state_update if groups else mamba_selective_state_update

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(dtype)

    factors = -torch.rand(4, 1, 1).expand(4, 6, size) if groups else -torch.rand(24, size)
    mixed = (drawn(3, groups, size), drawn(3, groups, size)) if groups else (drawn(3, size), drawn(3, size))
    given = (drawn(3, *channels), drawn(3, *channels), factors, *mixed, torch.randn(channels))
    more = {"dt_bias": torch.randn(channels), "dt_softplus": True, "z": None if groups else drawn(3, *channels)}
    state = torch.randn(3, *channels, size)
    moved = state.clone()
    found = selective_state_update(refuse, moved, *given, **more)
    expected = theirs(state, *given, **more)
    assert found.dtype == expected.dtype == dtype
    torch.testing.assert_close(found, expected, atol=8 * tolerance, rtol=tolerance)
    torch.testing.assert_close(moved, state, atol=4 * tolerance, rtol=tolerance)


def test_states_of_other_dtypes_are_left_to_transformers() -> None:
    row = torch.randn(2, 4)
    with pytest.raises(AssertionError, match="was called"):
        selective_state_update(refuse, torch.zeros(2, 4, 8).double(), row, row, torch.zeros(4, 8), row, row)
