"""What this process opens, resolves and connects to, by Python's audit events."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - or the first `to_thread` opens its file, maybe while somebody watches
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_listening: list[list[tuple[str, tuple[object, ...]]]] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _listening and event in ("open", "os.listdir", "socket.connect", "socket.getaddrinfo"):
        _listening[-1].append((event, arguments))


sys.addaudithook(_hook)


@contextmanager
def watching() -> Iterator[list[tuple[str, tuple[object, ...]]]]:
    """The events from here on."""
    _listening.append([])
    try:
        yield _listening[-1]
    finally:
        _listening.pop()
