"""What the pretended device keeps of a captured step: its operations, and the memory that they write to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


class Recording:
    """Operations that `replay` runs again.

    Args:
        pool: the memory of all graphs. Of a device's graphs one runs at a time, and they share it: what another one has
            left there is gone.
    """

    def __init__(self, pool: list[Tensor]) -> None:
        self._pool = pool
        self._operations: list[Callable[[], None]] = []

    def add(self, operation: Callable[[], None]) -> None:
        """Keep a kernel, which writes to what it is given."""
        self._operations.append(operation)

    def add_operation(self, func: Any, given: Any, named: dict[str, Any], made: Any, fresh: Sequence[Tensor]) -> None:
        """Keep an operation of torch, its results, and those of them that have memory of their own."""
        self._pool += fresh
        self._operations.append(lambda: _again(func, given, named, made))

    def replay(self) -> None:
        """Run all again, on the same addresses."""
        for tensor in self._pool:
            _spoil(tensor)
        for operation in self._operations:
            operation()


def own_memory(made: Any, given: Sequence[Tensor]) -> list[Tensor]:
    """Those of an operation's results that do not lie in the memory of its inputs."""
    before = {each.untyped_storage().data_ptr() for each in given}
    tensors = (each for each in tree_leaves(made) if isinstance(each, Tensor) and each.numel())
    return [each for each in tensors if each.untyped_storage().data_ptr() not in before]


def _spoil(tensor: Tensor) -> None:
    """Write what nobody can have meant over all of a tensor's memory; an index of it is out of all bounds."""
    flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    if tensor.is_floating_point() or tensor.is_complex():
        flat.fill_(float("nan"))
    elif tensor.dtype != torch.bool:
        flat.fill_(torch.iinfo(tensor.dtype).max)


def _again(func: Any, given: Any, named: dict[str, Any], made: Any) -> None:
    """Run an operation again, and leave its results where they were."""
    results = zip(tree_leaves(made), tree_leaves(func(*given, **named)), strict=True)
    for before, now in results:
        # Views and operations in place have left them there.
        if isinstance(before, Tensor) and before.data_ptr() != now.data_ptr():
            before.copy_(now)
