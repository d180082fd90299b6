"""A lock around loading with transformers, which imports its modules lazily and swaps functions of torch meanwhile, for
all threads: two native backends that loaded at the same time would break each other.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

T = TypeVar("T")

_LOCK = Lock()


def with_import_lock(load: Callable[..., T], *arguments: object) -> T:
    """Call `load(*arguments)` while no other thread of this process loads."""
    with _LOCK:
        return load(*arguments)
