"""Writes of one turn of the event loop leave together, at its end.

A write to a socket wakes the process at the other end if that waits for it, and to wake a process on another core costs
the writer 15 µs and more (a virtual machine): as much as all else that the kernel does for a request. A process whose
requests come one by one waits between them; one whose requests come together does not. A second write to the same
socket is no system call of its own, either.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

_MOST_SOCKETS = 32
"""Sockets whose bytes wait at most: in a long turn the first need not wait for the last."""
_MOST_HELD = 64 * 1024
"""Bytes for one socket that wait at most: more of them, and the socket is to tell how slow its reader is."""


class Outboxes:
    """The outboxes of one event loop that have something to send.

    Args:
        loop: the event loop.

    Attributes:
        waiting: those that hold something.
    """

    __slots__ = ("_loop", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.waiting: list[Outbox] = []

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Outboxes:
        """Those of an event loop."""
        if (found := _OF_LOOPS.get(loop)) is None:
            found = _OF_LOOPS[loop] = cls(loop)
        return found

    def send_soon(self) -> None:
        """Have all send what they hold at the turn's end."""
        self._loop.call_soon(self.send)

    def send(self) -> None:
        """Have all send what they hold."""
        waiting, self.waiting = self.waiting, []
        for outbox in waiting:
            try:
                outbox.flush()
            except Exception as error:  # of one socket; what the others hold is to leave
                self._loop.call_exception_handler({"message": "a socket was not written to", "exception": error})


_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, Outboxes] = WeakKeyDictionary()


class Outbox:
    """What is to be written to one socket.

    Args:
        transport: the socket's.
        loop: its event loop.

    Attributes:
        transport: the socket's.
        written: how many bytes it has got in all.
    """

    __slots__ = ("_held", "_outboxes", "transport", "written")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.transport = transport
        self._outboxes = Outboxes.of(loop)
        self._held = b""
        self.written = 0

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken."""
        return len(self._held) + self.transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Write bytes behind those before."""
        self.written += len(data)
        if not self._held:
            self._held, outboxes = data, self._outboxes
            outboxes.waiting.append(self)
            if (count := len(outboxes.waiting)) == 1:
                outboxes.send_soon()
            elif count >= _MOST_SOCKETS:
                outboxes.send()
        else:
            self._held += data
            if len(self._held) > _MOST_HELD:
                self.flush()

    def flush(self) -> None:
        """Send what is held, unless the socket was closed meanwhile."""
        if self._held:
            data, self._held = self._held, b""
            if not self.transport.is_closing():
                self.transport.write(data)
