"""Records what this process opens, resolves and connects to, with Python's audit hooks (PEP 578)."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - else `to_thread` opens it while a test records
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_recorders: list[list[tuple[str, tuple[object, ...]]]] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _recorders and event in ("open", "os.listdir", "socket.connect", "socket.getaddrinfo"):
        _recorders[-1].append((event, arguments))


sys.addaudithook(_hook)


@contextmanager
def recorded_events() -> Iterator[list[tuple[str, tuple[object, ...]]]]:
    """The events inside the block."""
    _recorders.append([])
    try:
        yield _recorders[-1]
    finally:
        _recorders.pop()
