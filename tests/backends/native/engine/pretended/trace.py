"""What a pretended device notes: waits of the host, copies and kernels, each with the line of ours that caused it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

_OURS = "backends/native/"
_THEIRS = "transformers/"
_COPYING = "engine/devices.py"  # whoever calls it is of interest


class Operation(NamedTuple):
    """What was started, in a form that is the same for two starts that a graph could replay for each other.

    Attributes:
        name: of the operation.
        tensors: of each its shape, its strides, its place in its memory, and which memory that is: the address of one
            that was there before, or the number of one that was made since the trace was cleared.
        numbers: what else it was given.
    """

    name: str
    tensors: tuple[Any, ...]
    numbers: tuple[Any, ...]

    @property
    def without_memory(self) -> tuple[Any, ...]:
        """The same for an operation on tensors that are elsewhere."""
        return self.name, tuple(each[:-1] for each in self.tensors), self.numbers


@dataclass(slots=True, eq=False)
class Trace:
    """Counts by line since the last `clear`.

    Attributes:
        waits: when the host waited for the device, by (reason, line).
        copies: copies between host and device, waited for or not, by (direction, line).
        kernels: kernels that were started, by (operation, line).
        operations: each operation on the device in turn.
    """

    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    copies: Counter[tuple[str, str]] = field(default_factory=Counter)
    kernels: Counter[tuple[str, str]] = field(default_factory=Counter)
    operations: list[Operation] = field(default_factory=list)
    _made: dict[int, int] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget everything."""
        for each in (self.waits, self.copies, self.kernels, self.operations, self._made):
            each.clear()

    def started(self, name: str, tensors: Iterable[Tensor], numbers: Sequence[Any], kernels: int) -> None:
        """Note an operation of so many kernels on these tensors of the CPU."""
        self.kernels[name, line_of_ours()] += kernels
        self.operations.append(Operation(name, tuple(self._place(each) for each in tensors), tuple(numbers)))

    def made(self, tensors: Iterable[Tensor]) -> None:
        """Note tensors of the CPU with memory of their own."""
        for each in tensors:
            self._made[_memory(each)] = len(self.operations)

    def _place(self, tensor: Tensor) -> tuple[Any, ...]:
        shape, memory = tuple(tensor.shape), _memory(tensor)
        made = self._made.get(memory)
        where = ("at", memory) if made is None else ("made by", made)
        return shape, tensor.stride(), tensor.storage_offset(), where

    def report(self) -> str:
        """The waits and copies by line, for messages of failed tests and for a person."""
        parts = [("waits", self.waits), ("copies", self.copies)]
        lines = [f"{part}: {counted.total()}" for part, counted in parts]
        for part, counted in parts:
            lines += [f"  {number} {part}: {what} at {line}" for (what, line), number in counted.most_common()]
        return "\n".join([*lines, f"kernels: {self.kernels.total()}"])


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def line_of_ours() -> str:
    """The innermost line of the engine that runs, and the innermost of transformers below it."""
    frame, below = sys._getframe(1), ""
    while frame is not None:
        name = frame.f_code.co_filename
        if _OURS in name and "/tests/" not in name and not name.endswith(_COPYING):
            return f"{name.split(_OURS)[1]}:{frame.f_lineno}{below}"
        if _THEIRS in name and not below:
            below = f" <- {name.split(_THEIRS)[-1]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return f"?{below}"
