"""The compiled gated delta rule gives what transformers' functions give, and moves the states on alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

from backends.native.engine.state.delta_rule import delta_rule_update
from tests.backends.native.engine.kernels.compilers import needs_compiler

pytestmark = pytest.mark.torch


def refuse(*_: object, **__: object) -> tuple[torch.Tensor, None]:
    raise AssertionError("transformers' function was called")


def drawn(dtype: torch.dtype, heads: int, key_heads: int, widths: tuple[int, int], *, each_key: bool) -> dict[str, Any]:
    """The arguments of a call for three sequences; queries, keys and values are parts of one tensor."""
    keys, values = widths
    joined = torch.randn(3, 1, 2 * key_heads * keys + heads * values).to(dtype)
    query, key, value = joined.split([key_heads * keys, key_heads * keys, heads * values], dim=-1)
    return {
        "query": query.view(3, 1, key_heads, keys),
        "key": key.view(3, 1, key_heads, keys),
        "value": value.view(3, 1, heads, values),
        "g": -torch.rand((3, 1, heads, keys) if each_key else (3, 1, heads)),
        "beta": torch.rand(3, 1, heads).to(dtype),
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
    }


CASES = [
    (dtype, tolerance, widths, each_key)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2**-7))
    for widths in ((16, 16), (64, 64), (128, 128), (40, 216))
    for each_key in (False, True)
]
"""Of each the dtype, the tolerance, the numbers of a key and a value, and whether each key has a decay.

That is Kimi's rule; in Qwen's, heads share keys.
"""


def compare(dtype: torch.dtype, tolerance: float, widths: tuple[int, int], each_key: bool) -> None:
    """Outputs and states are those of transformers' function."""
    torch.manual_seed(0)
    given = drawn(dtype, 4, 4 if each_key else 2, widths, each_key=each_key)
    theirs = recurrent_kimi_delta_attention if each_key else torch_recurrent_gated_delta_rule
    state = torch.randn(3, 4, *widths)
    shared = {name: given[name].repeat_interleave(4 // given[name].shape[2], dim=2) for name in ("query", "key")}
    expected, after = theirs(**given | shared, initial_state=state.clone())
    found, moved = delta_rule_update(refuse, **given, initial_state=state)
    assert moved is state
    assert found.dtype == expected.dtype == dtype
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(moved, after, atol=1e-5, rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_equals_transformers(case: tuple[Any, ...]) -> None:
    compare(*case)


@needs_compiler
def test_lengths_of_queries_and_keys_may_count() -> None:
    given = drawn(torch.float32, 2, 2, (16, 16), each_key=False) | {"use_qk_l2norm_in_kernel": False}
    state = torch.randn(3, 2, 16, 16)
    expected, after = torch_recurrent_gated_delta_rule(**given, initial_state=state.clone())
    found, moved = delta_rule_update(refuse, **given, initial_state=state)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(moved, after, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"initial_state": None},
        {"initial_state": torch.zeros(3, 2, 16, 16).double()},
        {"initial_state": torch.zeros(3, 2, 16, 32)[..., ::2]},
        {"query": torch.zeros(3, 2, 2, 16), "key": torch.zeros(3, 2, 2, 16), "value": torch.zeros(3, 2, 2, 16)},
        {"key": torch.zeros(3, 1, 2, 16).bfloat16()},
    ],
    ids=["no state", "double", "not contiguous", "two tokens", "two dtypes"],
)
def test_what_the_compiled_code_does_not_take_is_left_to_transformers(change: dict[str, Any]) -> None:
    given = drawn(torch.float32, 2, 2, (16, 16), each_key=False) | {"initial_state": torch.zeros(3, 2, 16, 16)}
    with pytest.raises(AssertionError, match="was called"):
        delta_rule_update(refuse, **given | change)
