"""One load at a time in a process: transformers imports its parts lazily and swaps functions of torch while it loads,
for all threads. Two native backends that start at once would break each other.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

T = TypeVar("T")

_LOADING = Lock()


def in_turn(load: Callable[..., T], *arguments: object) -> T:
    """What `load` makes of the arguments, once nobody else is loading."""
    with _LOADING:
        return load(*arguments)
