"""LoRA adapters in slots: what a step of spans says, on addresses that stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor, nn

from backends.native.engine.lora.layers import LoraLinear, LowRank, adapting, eject_lora, inject_lora
from backends.native.engine.lora.slots import MOST, NO_SLOT, LoraSlots
from tests.backends.native.engine.lora.test_layers import works

pytestmark = pytest.mark.torch

RANKS = {"a": 2, "b": 5, "c": 3}


def matrices(rank: int, inputs: int, outputs: int) -> LowRank:
    return LowRank(torch.randn(rank, inputs), torch.randn(rank, outputs))


def model_with(*names: str) -> Any:
    """Two layers in turn; "b" has nothing for the second, and "c" nothing for the first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
    for name in names:
        load(model, name)
    return model


def load(model: Any, name: str, rank: int = 0) -> None:
    widths = {"0": (6, 8), "1": (8, 4)}
    layers = {"b": ("0",), "c": ("1",)}.get(name, ("0", "1"))
    inject_lora(model, {name: {layer: matrices(rank or RANKS[name], *widths[layer]) for layer in layers}})


def outputs(model: Any, slots: LoraSlots, names: tuple[str, ...], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows in a step by slots, and in one by spans."""
    with torch.inference_mode():
        placed = slots.place(names)
        assert placed is not None
        with slots.adapting(torch.tensor(placed)):
            found = model(rows)
        with adapting(works(*((name, 1) for name in names))):
            return found, model(rows)


@pytest.mark.parametrize("names", [("a",), ("", "a", "b", "c", "a", ""), ("c", "b"), ("", "c")])
def test_a_row_gets_what_it_gets_in_a_span(names: tuple[str, ...]) -> None:
    model = model_with("a", "b", "c")
    slots = LoraSlots(model)
    assert slots.reserve()
    assert slots.count == 4
    rows = torch.randn(1, len(names), 6)
    torch.testing.assert_close(*outputs(model, slots, names, rows))


def test_another_row_s_numbers_are_of_no_concern() -> None:
    """Not even those that overflow with a LoRA adapter that is not the row's."""
    model = model_with("a", "b")
    model[0].by_name["b"].a.fill_(1e38)
    slots = LoraSlots(model)
    slots.reserve()
    found, _ = outputs(model, slots, ("", "a", "b"), torch.full((1, 3, 6), 1e3))
    assert found[0, :2].isfinite().all()
    assert not found[0, 2].isfinite().all()


def test_the_one_that_was_not_needed_for_the_longest_loses_its_slot() -> None:
    model = model_with("a", "b")
    slots = LoraSlots(model)
    slots.reserve()
    for name in ("x1", "x2", "x3"):
        load(model, name, 2)
    assert slots.count == 2
    before = [layer.slots.a.data_ptr() for layer in model]
    with torch.inference_mode():
        assert slots.place(["", "b", "a"]) is not None
        first = slots.place(["x1"])
        assert first == slots.place(["x1", "x1"])[:1]  # type: ignore[index]
        assert slots.place(["a", "x1"]) == slots.place(["a", "x1"])
        assert slots.place(["x2", "", "x1"])[1] == NO_SLOT  # type: ignore[index]
        assert slots.place(["a", "b", "x1"]) is None
    for names in (("x3", "x1"), ("x3", "a"), ("b", "x2")):
        torch.testing.assert_close(*outputs(model, slots, names, torch.randn(1, 2, 6)))
    assert [layer.slots.a.data_ptr() for layer in model] == before


def test_slots_change_shape_for_a_larger_rank_another_layer_or_more_of_them() -> None:
    model = model_with("b")
    slots = LoraSlots(model)
    assert slots.reserve()
    assert not slots.reserve()
    assert slots.count == 1
    load(model, "c")  # a second layer, and a second LoRA adapter
    assert slots.reserve()
    assert slots.count == 2
    eject_lora(model, "c")
    load(model, "a", 3)
    assert not slots.reserve()
    torch.testing.assert_close(*outputs(model, slots, ("a", "b", ""), torch.randn(1, 3, 6)))
    eject_lora(model, "a")
    load(model, "a", 4)
    assert slots.reserve()  # in the second layer the largest was 3
    assert slots.count == 2
    torch.testing.assert_close(*outputs(model, slots, ("a", "b", ""), torch.randn(1, 3, 6)))
    for number in range(2 * MOST):
        load(model, f"x{number}", 1)
    assert slots.reserve()
    assert slots.count == MOST
    size = sum(layer.slots.a.numel() + layer.slots.b.numel() for layer in model)
    assert size == MOST * (5 * (6 + 8) + 4 * (8 + 4))


def test_without_memory_there_are_no_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    model = model_with("a")
    slots = LoraSlots(model)
    slots.reserve()
    load(model, "b")
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(Tensor, "new_zeros", full)
        assert slots.reserve()
    assert [each["event"] for each in logs] == ["graph.not_used"]
    assert (slots.count, [layer.slots for layer in model]) == (0, [None, None])
    with torch.inference_mode():
        assert slots.place(["a"]) is None
    assert slots.reserve()
    torch.testing.assert_close(*outputs(model, slots, ("a", "b"), torch.randn(1, 2, 6)))


def test_a_layer_that_is_given_other_rows_says_so() -> None:
    model = model_with("a")
    slots = LoraSlots(model)
    slots.reserve()
    with slots.adapting(torch.tensor([0, 0, NO_SLOT])), pytest.raises(RuntimeError, match="given 2 of a step's 3 rows"):
        model(torch.randn(2, 6))
    assert isinstance(model[0], LoraLinear)
