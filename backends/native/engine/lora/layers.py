"""LoRA adapters (arXiv 2106.09685): several over one model, each sequence of a step with its own or none.

The linear layers that a LoRA adapter was trained for are wrapped; nothing else of the model is touched. A context
variable, set while the runner is inside `adapting(...)`, maps the rows of a step to LoRA adapters, so that models need
not pass anything through: by spans of rows here, by slots (`slots`) in a step of a graph. The one thing to know: a
wrapped layer must be given all rows of the step, in order. The check at load (`lora_check`) finds models with a layer
that gets others (an expert's).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional

from backends.native.engine.scheduling.sequence import Work


@dataclass(slots=True, frozen=True, eq=False)
class LowRank:
    """What a LoRA adapter adds to one layer: `rows @ a.T @ b`.

    Attributes:
        a: [rank, in_features].
        b: [rank, out_features], with the LoRA adapter's scaling in it.
    """

    a: Tensor
    b: Tensor


LoraAdapter = Mapping[str, LowRank]
"""By the name of the layer in the model."""


class Rows(Protocol):
    """Whose the rows of a step are."""

    def add_to(self, product: Tensor, rows: Tensor, layer: LoraLinear) -> None:
        """Add to `product` [rows, out_features], in place, what their LoRA adapters say of `rows`."""
        ...


@dataclass(slots=True, frozen=True, eq=False)
class Spans:
    """Rows by the spans that LoRA adapters have of them. Implements `Rows`.

    Attributes:
        rows: how many the step has.
        adapted: (LoRA adapter, first row, row after the last) of those that have one.
    """

    rows: int
    adapted: Seq[tuple[str, int, int]]

    def add_to(self, product: Tensor, rows: Tensor, layer: LoraLinear) -> None:
        """See `Rows`."""
        check_rows(rows, self.rows)
        for name, start, end in self.adapted:
            found = layer.by_name.get(name)
            if found is not None:
                product[start:end].addmm_(functional.linear(rows[start:end], found.a), found.b)


def check_rows(rows: Tensor, count: int) -> None:
    """Rows are assigned by their index: a layer that gets a part of them would give them to the wrong sequences."""
    if len(rows) != count:
        raise RuntimeError(f"an adapted layer was given {len(rows)} of a step's {count} rows")


_current: ContextVar[Rows | None] = ContextVar("interlingua_lora", default=None)


def adapting(works: Seq[Work]) -> AbstractContextManager[None]:
    """Give the tokens of `works`, which the model called inside is run on, their sequences' LoRA adapters."""
    found = spans(works)
    return adapting_rows(found if found.adapted else None)


@contextmanager
def adapting_rows(rows: Rows | None) -> Iterator[None]:
    """Have the model called inside run on `rows`; None: none has a LoRA adapter."""
    token = _current.set(rows)
    try:
        yield
    finally:
        _current.reset(token)


def spans(works: Seq[Work]) -> Spans:
    """Neighbours with the same LoRA adapter are one span."""
    adapted: list[tuple[str, int, int]] = []
    end = 0
    for work in works:
        start, end = end, end + work.count
        name = work.sequence.request.lora_adapter
        if not name:
            continue
        # The engine sorts works by LoRA adapter, so each takes two products a layer, however many sequences use it.
        if adapted and adapted[-1][0] == name and adapted[-1][2] == start:
            start = adapted.pop()[1]
        adapted.append((name, start, end))
    return Spans(end, adapted)


class LoraLinear(nn.Module):
    """Takes the place of a linear layer, of whatever kind.

    It has no `weight`: model code that multiplied by that itself would pass the LoRA adapters by.

    Attributes:
        by_name: of each LoRA adapter that has something for the layer, what it adds.
        slots: those of `LoraSlots`, one after the other in one pair of matrices; None: the layer has none.
    """

    def __init__(self, linear: Any, by_name: Mapping[str, LowRank]) -> None:
        super().__init__()
        self._linear = linear
        self.by_name = dict(by_name)
        self.slots: LowRank | None = None
        # Its widths, which are those of the layer that it wraps.
        for width in ("in_features", "out_features", "nx", "nf"):
            if hasattr(linear, width):
                setattr(self, width, getattr(linear, width))

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        # `forward` is called directly: a step without LoRA adapters pays for one module call, not for two.
        product: Tensor = self._linear.forward(rows)
        current = _current.get()
        if current is not None:
            current.add_to(product.flatten(0, -2), rows.flatten(0, -2), self)
        return product


def inject_lora(model: Any, lora_adapters: Mapping[str, LoraAdapter]) -> None:
    """Wrap the layers of `model`, in place, that any of `lora_adapters` has something for."""
    for layer in dict.fromkeys(layer for lora in lora_adapters.values() for layer in lora):
        parent, _, name = layer.rpartition(".")
        by_name = {each: lora[layer] for each, lora in lora_adapters.items() if layer in lora}
        linear = model.get_submodule(layer)
        if isinstance(linear, LoraLinear):
            linear.by_name |= by_name
        else:
            setattr(model.get_submodule(parent), name, LoraLinear(linear, by_name))


def eject_lora(model: Any, name: str) -> None:
    """Take the LoRA adapter `name` out of `model`. Layers stay wrapped: a step without LoRA adapters is as fast."""
    for module in model.modules():
        if isinstance(module, LoraLinear):
            module.by_name.pop(name, None)
