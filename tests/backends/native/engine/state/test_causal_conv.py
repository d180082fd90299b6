"""The compiled convolution in decode gives what transformers' function gives, and moves the state on alike."""

from __future__ import annotations

import pytest
import torch
from transformers.models.lfm2.modeling_lfm2 import causal_conv1d_update

from backends.native.engine.kernels import jit
from backends.native.engine.state.causal_conv import causal_conv_update

pytestmark = pytest.mark.torch


def refuse(*_: object) -> torch.Tensor:
    raise AssertionError("transformers' function was called")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-7)])
@pytest.mark.parametrize(("length", "taps"), [(3, 3), (4, 4), (3, 4), (6, 4)])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_it_equals_transformers(
    dtype: torch.dtype, tolerance: float, length: int, taps: int, activation: str | None
) -> None:
    if jit.find_compiler() is None:
        pytest.skip("missing tool: g++")
    torch.manual_seed(0)
    # As models call it: [sequences, 1, width] transposed, of which the channels are a part.
    inputs = torch.randn(5, 1, 96).to(dtype).transpose(1, 2)[:, 20:60]
    state = torch.randn(5, 40, length).to(dtype)
    weight = torch.randn(40, taps).to(dtype)
    bias = torch.randn(40).to(dtype) if activation else None
    moved = state.clone()
    found = causal_conv_update(refuse, inputs, moved, weight, bias, activation)
    expected = causal_conv1d_update(inputs, state, weight, bias, activation)
    torch.testing.assert_close(found, expected, atol=4 * tolerance, rtol=tolerance)
    assert torch.equal(moved, state)


def test_what_it_does_not_take_is_left_to_transformers() -> None:
    inputs, state, weight = torch.randn(2, 8, 3), torch.randn(2, 8, 4), torch.randn(8, 4)
    own = state.clone()
    found = causal_conv_update(causal_conv1d_update, inputs, state, weight)
    assert torch.equal(found, causal_conv1d_update(inputs, own, weight))
    assert torch.equal(state, own)
    with pytest.raises(AssertionError, match="was called"):
        causal_conv_update(refuse, inputs[..., :1], state.double(), weight.double())
