"""Low-rank adapters (LoRA, arXiv 2106.09685): several over one model, each sequence of a step with its own or none.

The linear layers that an adapter was trained for are wrapped; nothing else of the model is touched. Which rows of a
step belong to which adapter is in a context variable, set while the runner is inside `adapting(...)`, so that models
need not pass anything through. The one thing to know: a wrapped layer must be given the step's rows, all of them and
in order. A model whose layer gets others (an expert's) is told by the check at load (`lora_check`).
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
    """What an adapter adds to one layer: `rows @ a.T @ b`.

    Attributes:
        a: [rank, in_features].
        b: [rank, out_features], with the adapter's scaling in it.
    """

    a: Tensor
    b: Tensor


Adapter = Mapping[str, LowRank]
"""By the name of the layer in the model."""


@dataclass(slots=True, frozen=True, eq=False)
class Spans:
    """Whose the rows of a step are.

    Attributes:
        rows: how many the step has.
        adapted: (adapter, first row, row after the last) of those that have one.
    """

    rows: int
    adapted: Seq[tuple[str, int, int]]


_current: ContextVar[Spans | None] = ContextVar("interlingua_adapters", default=None)


@contextmanager
def adapting(works: Seq[Work]) -> Iterator[None]:
    """Give the tokens of `works`, which the model called inside is run on, their sequences' adapters."""
    found = spans(works)
    token = _current.set(found if found.adapted else None)
    try:
        yield
    finally:
        _current.reset(token)


def spans(works: Seq[Work]) -> Spans:
    """Neighbours with the same adapter are one span."""
    adapted: list[tuple[str, int, int]] = []
    end = 0
    for work in works:
        start, end = end, end + work.count
        name = work.sequence.request.adapter
        if not name:
            continue
        if adapted and adapted[-1][0] == name and adapted[-1][2] == start:
            start = adapted.pop()[1]
        adapted.append((name, start, end))
    return Spans(end, adapted)


class LoraLinear(nn.Module):
    """Takes the place of a linear layer, of whatever kind.

    It has no `weight`: model code that multiplied by that itself would pass the adapters by.
    """

    def __init__(self, linear: Any, by_adapter: Mapping[str, LowRank]) -> None:
        super().__init__()
        self._linear = linear
        self._by_adapter = by_adapter

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        product: Tensor = self._linear.forward(rows)  # not called: a step without adapters pays for one call, not two
        current = _current.get()
        if current is not None:
            self._add(rows.flatten(0, -2), product.flatten(0, -2), current)
        return product

    def _add(self, rows: Tensor, product: Tensor, current: Spans) -> None:
        """Add to `product`, in place, what the adapters say."""
        if len(rows) != current.rows:
            raise RuntimeError(f"an adapted layer was given {len(rows)} of a step's {current.rows} rows")
        for name, start, end in current.adapted:
            found = self._by_adapter.get(name)
            if found is not None:
                product[start:end].addmm_(functional.linear(rows[start:end], found.a), found.b)


def put_on(model: Any, adapters: Mapping[str, Adapter]) -> None:
    """Wrap the layers of `model`, in place, that any of `adapters` has something for."""
    for layer in dict.fromkeys(layer for adapter in adapters.values() for layer in adapter):
        parent, _, name = layer.rpartition(".")
        by_adapter = {each: adapter[layer] for each, adapter in adapters.items() if layer in adapter}
        linear = model.get_submodule(layer)
        setattr(model.get_submodule(parent), name, LoraLinear(linear, by_adapter))
