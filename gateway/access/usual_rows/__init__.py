"""Counting a request in all rows of its limits at once, where every row is as nearly all are.

A usual row is in the first place where its name may be, and was last counted in the same second, so that no count of it
has to be dropped. Whatever is not usual, and a limit that is reached, changes nothing here: then the caller counts the
request by `gateway.access.counters.CounterTable`, row by row, as all requests are where there was no C compiler.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable

__all__ = ["correct", "packed", "take"]

_ROW = struct.Struct("5q2d")
_KINDS = ("requests", "tokens", "cost")


def packed(rows: Iterable[tuple[int, tuple[int, int], int, str, float, float]]) -> bytes:
    """The rows of a request's limits in one second, for `take` and `correct`.

    Args:
        rows: of each limit where its row and its present count are in memory (bytes), between them the row's name; what
            is limited (`gateway.access.rules.Kind`), the end of what is counted now (Unix time), and the limit.
    """
    return b"".join(
        [_ROW.pack(row, *name, count, _KINDS.index(kind), until, most) for row, name, count, kind, until, most in rows]
    )


try:
    from gateway.access.usual_rows.compiled import correct, take
except ImportError:

    def take(memory: mmap.mmap, rows: bytes, tokens: float, /) -> tuple[float, ...] | None:  # noqa: ARG001 - as in C
        """Count a request and its tokens, unless a limit would be passed or is reached.

        Returns:
            What is left of each limit; None: nothing was counted.
        """
        return None

    def correct(memory: mmap.mmap, rows: bytes, tokens: float, cost: float, /) -> bool:  # noqa: ARG001 - as in C
        """Add to what limits of tokens and of costs have counted, or take from it.

        Returns:
            Whether that was done; else nothing was.
        """
        return False
