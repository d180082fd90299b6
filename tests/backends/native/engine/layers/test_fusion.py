"""Joining linear layers, and when two tensors are alike."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backends.native.engine.layers.fusion import Projections, alike
from backends.native.engine.layers.fusion import join as join_linears

pytestmark = pytest.mark.torch


def test_only_linears_of_one_dtype_and_input_are_joined() -> None:
    both = join_linears(nn.Linear(4, 2), nn.Linear(4, 3))
    assert both is not None
    assert (both.in_features, both.out_features, both.weight.shape) == (4, 5, (5, 4))
    assert join_linears(nn.Linear(4, 2), nn.Linear(5, 2)) is None
    assert join_linears(nn.Linear(4, 2), nn.Linear(4, 2, bias=False)) is None
    assert join_linears(nn.Linear(4, 2), nn.Linear(4, 2).half()) is None


@pytest.mark.parametrize("joined", ["", "both"])
def test_projections_give_all_outputs_side_by_side(joined: str) -> None:
    linears, rows = {"one": nn.Linear(4, 2), "other": nn.Linear(4, 3)}, torch.randn(5, 4)
    expected = torch.cat([linear(rows) for linear in linears.values()], dim=-1)
    projections = Projections(linears, joined)
    torch.testing.assert_close(projections.project(rows), expected)
    assert [name for name, _ in projections.named_children()] == (["both"] if joined else ["one", "other"])


def test_alike_allows_roundings_of_a_rows_largest_number_only() -> None:
    expected = torch.tensor([[1000.0, 1.0], [1.0, 1.0]])
    rounding = 1000 * torch.finfo(torch.float32).eps
    assert alike(expected, expected + torch.tensor([[0.0, rounding], [0.0, 0.0]]))
    assert not alike(expected, expected + torch.tensor([[0.0, 0.0], [0.0, rounding]]))
    assert not alike(expected, expected.double())
    assert not alike(expected, expected[:1])
    assert not alike(expected, torch.full((2, 2), float("nan")))
