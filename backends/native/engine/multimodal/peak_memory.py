"""The most memory that tensors held at once. On a CUDA device its allocator counts; elsewhere each operation's results
are counted as they come and go, without what an operation needs inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(slots=True, eq=False)
class Peak:
    """`bytes`: the most beyond what was held at first. Whole after the measurement."""

    bytes: int = 0


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measure what is done inside, in this thread."""
    peak = Peak()
    if device.type == "cuda":
        held = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.bytes = torch.cuda.max_memory_allocated(device) - held
    else:
        with _Counting() as counting:
            yield peak
        peak.bytes = counting.most


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages, each while a tensor over it lives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._now = 0
        self._tensors: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        given = {_storage(each) for each in tree_leaves((args, kwargs)) if _has_storage(each)}
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if _has_storage(each) and (_storage(each) in self._tensors or _storage(each) not in given):
                self._hold(each)
        return made

    def _hold(self, tensor: Tensor) -> None:
        storage, size = _storage(tensor), tensor.untyped_storage().nbytes()
        if storage not in self._tensors:
            self._tensors[storage] = 0
            self._now += size
            self.most = max(self.most, self._now)
        self._tensors[storage] += 1
        finalize(tensor, self._drop, storage, size)

    def _drop(self, storage: int, size: int) -> None:
        self._tensors[storage] -= 1
        if not self._tensors[storage]:
            del self._tensors[storage]
            self._now -= size


def _has_storage(value: Any) -> bool:
    """Weights in an order of oneDNN's have none to be seen."""
    return isinstance(value, Tensor) and value.layout is not torch._mkldnn  # type: ignore[attr-defined]  # noqa: SLF001


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - an address, and so unlike any other's while it lives
