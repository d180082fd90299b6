"""What a pretended device notes: waits of the host, copies and kernels, each with the line of ours that caused it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field

_OURS = "backends/native/"
_THEIRS = "transformers/"
_COPYING = "engine/devices.py"  # whoever calls it is of interest


@dataclass(slots=True, eq=False)
class Trace:
    """Counts by line since the last `clear`.

    Attributes:
        waits: when the host waited for the device, by (reason, line).
        copies: copies between host and device, waited for or not, by (direction, line).
        kernels: kernels that were started, by (operation, line).
        operations: of each operation on the device in turn, its name and the shapes of its tensors.
    """

    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    copies: Counter[tuple[str, str]] = field(default_factory=Counter)
    kernels: Counter[tuple[str, str]] = field(default_factory=Counter)
    operations: list[tuple[str, tuple[tuple[int, ...], ...]]] = field(default_factory=list)

    def clear(self) -> None:
        """Forget everything."""
        for each in (self.waits, self.copies, self.kernels, self.operations):
            each.clear()

    def report(self) -> str:
        """The waits and copies by line, for messages of failed tests and for a person."""
        parts = [("waits", self.waits), ("copies", self.copies)]
        lines = [f"{part}: {counted.total()}" for part, counted in parts]
        for part, counted in parts:
            lines += [f"  {number} {part}: {what} at {line}" for (what, line), number in counted.most_common()]
        return "\n".join([*lines, f"kernels: {self.kernels.total()}"])


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
