"""The compiled pass of Griffin's block gives what torch's operations give, and moves both states on alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

from backends.native.engine.state import griffin
from backends.native.engine.state.griffin_update import GriffinUpdate
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = pytest.mark.torch

CASES = [
    (dtype, tolerance, heads, width, sequences, activation)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2**-7))
    for heads, width, sequences, activation in (
        (4, 24, 3, "gelu_pytorch_tanh"),
        (3, 64, 11, "gelu_pytorch_tanh"),
        (2, 8, 1, "silu"),
    )
]
"""Of each the dtype, the tolerance, heads, a head's width, sequences, and the activation of the other branch."""


def block(dtype: torch.dtype, heads: int, width: int, activation: str) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": heads * width, "lru_width": heads * width, "num_attention_heads": heads}
    made = RecurrentGemmaRecurrentBlock(RecurrentGemmaConfig(**sizes, hidden_activation=activation), 0)
    for parameter in made.parameters():
        parameter.data.normal_(0.0, 0.5)
    return made.to(dtype)


@torch.inference_mode()
def compare(dtype: torch.dtype, tolerance: float, heads: int, width: int, sequences: int, activation: str) -> None:
    """Outputs and states are those of the torch operations that stand in for the compiled pass."""
    plain, channels = block(dtype, heads, width, activation), heads * width
    # Parts of one tensor, as a joined projection would give them.
    inputs, branch = torch.randn(sequences, 2 * channels).to(dtype).chunk(2, dim=-1)
    latest, state = torch.randn(sequences, channels, 3).to(dtype), torch.randn(sequences, channels)
    moved: tuple[Tensor, Tensor] = (latest.clone(), state.clone())
    compiled = GriffinUpdate.of(plain)
    assert compiled is not None
    assert compiled.takes(inputs, branch, *moved)
    found = compiled.update(inputs, branch, *moved)
    # Without compiled code: `decode` finds none.
    plain.interlingua_update = None
    expected = griffin.decode(plain, inputs, branch, latest, state)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, atol=8 * tolerance, rtol=tolerance)
    torch.testing.assert_close(moved[1], state, atol=4 * tolerance, rtol=tolerance)
    assert torch.equal(moved[0], latest)


@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_equals_torch(case: tuple[Any, ...]) -> None:
    compare(*case)


@needs_compiler
@torch.inference_mode()
def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    compiled = GriffinUpdate.of(block(torch.float32, 3, 64, "gelu_pytorch_tanh"))
    assert compiled is not None
    given = [torch.randn(11, 192), torch.randn(11, 192), torch.randn(11, 192, 3), torch.randn(11, 192)]
    alone = [each[9:10].clone() for each in given]
    assert torch.equal(compiled.update(*given)[9:10], compiled.update(*alone))
    assert torch.equal(given[3][9:10], alone[3])


@needs_compiler
@torch.inference_mode()
def test_it_takes_no_others() -> None:
    compiled = GriffinUpdate.of(block(torch.float32, 2, 8, "silu"))
    assert compiled is not None
    rows, latest = torch.randn(3, 16), torch.randn(3, 16, 3)
    assert compiled.takes(rows, rows, latest, rows)
    for others in (
        (rows.bfloat16(), rows, latest, rows),
        (rows, rows[:2], latest, rows),
        (rows, rows.T.contiguous().T, latest, rows),
        (rows, rows, latest[..., :2], rows),
        (rows, rows, torch.randn(3, 3, 16).transpose(1, 2), rows),
        (rows, rows, latest, rows.double()),
        (rows, rows, latest, torch.randn(3, 32)[:, :16]),
    ):
        assert not compiled.takes(*others)


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.native.engine.state.griffin_update.typed_function", lambda *_: None)
    assert GriffinUpdate.of(block(torch.float32, 2, 8, "silu")) is None


def test_dtypes_are_not_mixed() -> None:
    mixed = block(torch.float32, 2, 8, "silu")
    mixed.conv_1d.bfloat16()
    assert GriffinUpdate.of(mixed) is None
