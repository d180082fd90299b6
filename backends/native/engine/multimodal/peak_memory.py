"""Peak memory of tensors.

An accelerator's allocator counts it. Elsewhere the result of each operation is counted while it lives, without the
operation's own scratch memory.
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
    """`bytes`: the peak beyond what was held at the start. Valid after the measurement."""

    bytes: int = 0


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measure the peak of the block inside, in this thread."""
    peak = Peak()
    if device.type not in ("cpu", "meta"):
        held = torch.accelerator.memory_allocated(device)
        torch.accelerator.reset_peak_memory_stats(device)
        yield peak
        peak.bytes = torch.accelerator.max_memory_allocated(device) - held
    else:
        with _Counting() as counting:
            yield peak
        peak.bytes = counting.most


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts each storage as long as a tensor over it lives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._now = 0
        self._tensors: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        # Views and in-place results share a storage with an argument: a weight's view is not new memory, a counted
        # tensor's view keeps it alive.
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
        # A storage counts until the last tensor over it is collected.
        finalize(tensor, self._drop, storage, size)

    def _drop(self, storage: int, size: int) -> None:
        self._tensors[storage] -= 1
        if not self._tensors[storage]:
            del self._tensors[storage]
            self._now -= size


def _has_storage(value: Any) -> bool:
    """Whether a value is a tensor with a visible storage; weights in oneDNN's layout have none."""
    return isinstance(value, Tensor) and value.layout is not torch._mkldnn  # type: ignore[attr-defined]  # noqa: SLF001


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - an address: unique while the storage lives
