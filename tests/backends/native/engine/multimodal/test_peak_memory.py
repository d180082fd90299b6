"""Peak memory: the results of operations are counted while they are alive."""

from __future__ import annotations

import pytest
import torch

from backends.native.engine.layers.packed_linear import PackedLinear
from backends.native.engine.multimodal.peak_memory import peak_memory

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
MEGA = 1024 * 1024


def megabytes(count: int) -> torch.Tensor:
    return torch.zeros(count * MEGA, dtype=torch.uint8)


def test_the_peak_is_the_most_at_once() -> None:
    with peak_memory(CPU) as peak:
        one = megabytes(3)
        two = megabytes(5)
        del one
        three = megabytes(1)
    assert peak.bytes == 8 * MEGA
    assert len(two) + len(three) == 6 * MEGA


def test_views_and_in_place_operations_count_nothing() -> None:
    before = megabytes(7)
    with peak_memory(CPU) as peak:
        before[: 2 * MEGA].add_(1)
        before.view(7, MEGA).t()
    assert peak.bytes == 0


def test_a_view_keeps_its_storage_counted() -> None:
    with peak_memory(CPU) as peak:
        kept = megabytes(4)[:1]
        megabytes(2)
    assert peak.bytes == 6 * MEGA
    assert len(kept) == 1


def test_modules_in_inference_mode_are_counted() -> None:
    layer = torch.nn.Linear(1024, 1024, bias=False)
    with torch.inference_mode(), peak_memory(CPU) as peak:
        layer(layer(torch.zeros(1024, 1024)))
    assert 8 * MEGA <= peak.bytes <= 12 * MEGA, "input and output of each, or all three"


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("rows", [1, 32])
def test_weights_in_the_onednn_layout_are_not_counted(rows: int) -> None:
    layer = PackedLinear(torch.nn.Linear(1024, 1024))
    with torch.inference_mode(), peak_memory(CPU) as peak:
        layer(torch.zeros(rows, 1024))
    assert 4096 * rows <= peak.bytes <= 3 * 4096 * max(rows, 4)  # a few are padded where nothing can be compiled
