"""LoRA adapters (arXiv 2106.09685): several over one model, each sequence of a step with its own or none.

The linear layers that a LoRA adapter was trained for are wrapped; nothing else of the model is touched. A context
variable, set while the runner is inside `adapting(...)`, maps the rows of a step to LoRA adapters, so that models need
not pass anything through. The one thing to know: a wrapped layer must be given all rows of the step, in order. The
check at load (`lora_check`) finds models with a layer that gets others (an expert's).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

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


@dataclass(slots=True, frozen=True, eq=False)
class Spans:
    """Whose the rows of a step are.

    Attributes:
        rows: how many the step has.
        adapted: (LoRA adapter, first row, row after the last) of those that have one.
    """

    rows: int
    adapted: Seq[tuple[str, int, int]]


_current: ContextVar[Spans | None] = ContextVar("interlingua_lora", default=None)


@contextmanager
def adapting(works: Seq[Work]) -> Iterator[None]:
    """Give the tokens of `works`, which the model called inside is run on, their sequences' LoRA adapters."""
    found = spans(works)
    token = _current.set(found if found.adapted else None)
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
    """

    def __init__(self, linear: Any, by_name: Mapping[str, LowRank]) -> None:
        super().__init__()
        self._linear = linear
        self.by_name = dict(by_name)
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
            self._add(rows.flatten(0, -2), product.flatten(0, -2), current)
        return product

    def _add(self, rows: Tensor, product: Tensor, current: Spans) -> None:
        """Add to `product`, in place, what the LoRA adapters say."""
        # Rows are assigned by their index: a layer that gets a part of them would give them to the wrong sequences.
        if len(rows) != current.rows:
            raise RuntimeError(f"an adapted layer was given {len(rows)} of a step's {current.rows} rows")
        for name, start, end in current.adapted:
            found = self.by_name.get(name)
            if found is not None:
                product[start:end].addmm_(functional.linear(rows[start:end], found.a), found.b)


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
