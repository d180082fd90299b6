"""What ends the supervisor's wait before its time: a signal, the end of a child, or bytes at a socket.

A process that wakes up many times a second costs a core some percent, although it has nothing to do: each time, what it
needs is in no cache.
"""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterable
from contextlib import suppress


class Wakeups:
    """The waits of the main thread. Signals that have a handler end them; SIGCHLD gets one."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # Python writes a byte when a signal comes, so one that comes just before the wait ends it, too.
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def wait(self, seconds: float, sources: Iterable[int]) -> None:
        """Return after so many seconds, or once there is something.

        Args:
            seconds: at most.
            sources: descriptors that may become readable.
        """
        poll = select.poll()
        for source in (self._reader.fileno(), *sources):
            poll.register(source, select.POLLIN)
        poll.poll(seconds * 1000)
        with suppress(BlockingIOError):
            self._reader.recv(4096)

    def close(self) -> None:
        """Leave signals to their handlers alone."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._reader.close()
        self._writer.close()
