"""LoRA adapters in slots: the same operations on the same addresses, whichever LoRA adapters the rows of a step have.

For steps that are replayed from graphs (`runner.graphs`). Each adapted layer has the matrices of a few LoRA adapters,
one after the other in one pair, and multiplies all rows by all of them; in between, what other slots than a row's own
say is put to 0. For some slots of low rank that reads little beside the layer's weight, and needs no kernel of its own.
A LoRA adapter is copied to a slot when a step needs it, and takes that of the one which was not needed for the longest.

Memory: at most `MOST` times what the largest LoRA adapter takes, layer by layer, beside the LoRA adapters themselves.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from torch import Tensor
from torch.nn import functional

from backends.native.engine.devices import OUT_OF_MEMORY
from backends.native.engine.lora.layers import LoraLinear, LowRank, adapting_rows, check_rows

log = structlog.get_logger()

MOST = 8
"""Slots; a step with more LoRA adapters runs without a graph."""
NO_SLOT = -1
"""Of rows without a LoRA adapter."""


class LoraSlots:
    """The slots of a model.

    Args:
        model: the model, into which LoRA adapters are injected.

    Attributes:
        count: how many there are; 0 before `reserve`, and if there is no memory for them.
    """

    def __init__(self, model: Any) -> None:
        self.count = 0
        self._model = model
        self._layers: list[LoraLinear] = []
        self._held: dict[str, int] = {}
        """The slot of each LoRA adapter that has one; the one that was not needed for the longest is first."""

    @torch.inference_mode()
    def reserve(self) -> bool:
        """Make slots for the LoRA adapters that the model has by now.

        Returns:
            whether any matrix is elsewhere, or has another shape, than before.
        """
        layers = [module for module in self._model.modules() if isinstance(module, LoraLinear)]
        names = {name for layer in layers for name in layer.by_name}
        # A power of two, so that another LoRA adapter seldom changes shapes.
        count = max(self.count, min(MOST, 1 << max(0, len(names) - 1).bit_length()))
        sizes = [count * max(_largest_rank(layer), _size(layer) // max(1, self.count)) for layer in layers]
        grown = [(layer, size) for layer, size in zip(layers, sizes, strict=True) if size > _size(layer)]
        if not grown:
            return False
        self._layers = [layer for layer, size in zip(layers, sizes, strict=True) if size]
        self._held.clear()
        try:
            for layer, size in grown:
                pair = layer.slots or next(iter(layer.by_name.values()))
                layer.slots = LowRank(*(each.new_zeros(size, each.shape[1]) for each in (pair.a, pair.b)))
        except OUT_OF_MEMORY:
            log.warning("graph.not_used", lora=True, why="there is no memory for the slots of LoRA adapters")
            self.release()
            return True
        self.count = count
        self.place(sorted(names)[:count])
        return True

    def release(self) -> None:
        """Give the memory back; there are no slots then."""
        for layer in self._layers:
            layer.slots = None
        self.count = 0
        self._held.clear()

    def place(self, names: Seq[str]) -> array[int] | None:
        """Have the LoRA adapters of a step in slots.

        Args:
            names: of each row; empty: none.

        Returns:
            each row's slot, or `NO_SLOT`. None: they are more than the slots.
        """
        wanted = dict.fromkeys(name for name in names if name)
        if len(wanted) > self.count:
            return None
        for name in wanted:
            slot = self._held.pop(name, None)
            if slot is None:
                slot = self._free_slot(wanted)
                self._fill(slot, name)
            self._held[name] = slot
        return array("q", [self._held.get(name, NO_SLOT) for name in names])

    def adapting(self, slots: Tensor) -> AbstractContextManager[None]:
        """Give each row of the model called inside the LoRA adapter in its slot; `slots` [rows], on the device."""
        others = slots.unsqueeze(1) != torch.arange(self.count, device=slots.device)
        return adapting_rows(_InSlots(others.unsqueeze(2)))

    def _free_slot(self, wanted: Collection[str]) -> int:
        if len(self._held) == self.count:
            return self._held.pop(next(name for name in self._held if name not in wanted))
        return min(set(range(self.count)) - set(self._held.values()))

    def _fill(self, slot: int, name: str) -> None:
        """Copy a LoRA adapter to a slot, in place: a step that was launched before has read what was there."""
        for layer in self._layers:
            assert layer.slots is not None
            rank = _size(layer) // self.count
            first, pair = slot * rank, layer.by_name.get(name)
            layer.slots.a[first : first + rank].zero_()
            if pair is not None:
                layer.slots.a[first : first + len(pair.a)].copy_(pair.a)
                layer.slots.b[first : first + len(pair.b)].copy_(pair.b)


@dataclass(slots=True, frozen=True, eq=False)
class _InSlots:
    """Rows by the slots of their LoRA adapters. Implements `layers.Rows`.

    Attributes:
        others: [rows, slots, 1], whether a slot is none of the row's.
    """

    others: Tensor

    def add_to(self, product: Tensor, rows: Tensor, layer: LoraLinear) -> None:
        """See `Rows`."""
        rows_of_step, slots, _ = self.others.shape
        check_rows(rows, rows_of_step)
        if layer.slots is None:
            return
        low = functional.linear(rows, layer.slots.a).view(rows_of_step, slots, -1)
        # Not multiplied by 0: what overflows with another's LoRA adapter would be NaN.
        product.addmm_(low.masked_fill_(self.others, 0.0).flatten(1), layer.slots.b)


def _size(layer: LoraLinear) -> int:
    """Rows of the layer's slots together."""
    return 0 if layer.slots is None else len(layer.slots.a)


def _largest_rank(layer: LoraLinear) -> int:
    return max((len(pair.a) for pair in layer.by_name.values()), default=0)
