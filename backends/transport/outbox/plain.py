"""Writes of one turn of the event loop leave together, at its end.

A write to a socket wakes the process at the other end if that waits for it, and to wake a process on another core costs
the writer 15 µs and more (a virtual machine): as much as all else that the kernel does for a request. A process whose
requests come one by one waits between them; one whose requests come together does not. A second write to the same
socket is no system call of its own, either. Where few sockets are written to, there is little to save: requests and
first events are sent at once (`Outbox.flush_early`).

`compiled.c` has the same classes: what one does, the other has to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from adapters.formats.text_runs import TextRuns
    from adapters.optional import RunWriter

MOST_SOCKETS = 32
"""Sockets whose bytes wait at most: in a long turn the first need not wait for the last."""
FEW_SOCKETS = 4
"""Sockets of a turn, and of the one before, up to which `Outbox.flush_early` sends at once."""
MOST_HELD = 64 * 1024
"""Bytes for one socket that wait at most: more of them, and the socket is to tell how slow its reader is."""
MOST_TIMES = 32
"""Reads that are noted together: what a scrape does not see yet, and a killed worker loses."""


class Outboxes:
    """The outboxes of one event loop that have something to send.

    Args:
        loop: the event loop.

    Attributes:
        waiting: those that were written to in this turn.
        before: how many were, in the last turn with any.
    """

    __slots__ = ("_loop", "before", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.waiting: list[Outbox] = []
        self.before = 0

    def send_soon(self) -> None:
        """Have all send what they hold at the turn's end."""
        self._loop.call_soon(self.send)

    def send(self) -> None:
        """Have all send what they hold."""
        waiting, self.waiting = self.waiting, []
        self.before = len(waiting) or self.before
        for outbox in waiting:
            try:
                outbox.flush()
            except Exception as error:  # of one socket; what the others hold is to leave
                self._loop.call_exception_handler({"message": "a socket was not written to", "exception": error})


class Outbox:
    """What is to be written to one socket.

    Args:
        transport: the socket's.
        outboxes: those of its event loop.

    Attributes:
        transport: the socket's.
        written: how many bytes it has got in all.
    """

    __slots__ = ("_held", "_outboxes", "transport", "written")

    def __init__(self, transport: asyncio.Transport, outboxes: Outboxes) -> None:
        self.transport = transport
        self._outboxes = outboxes
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
            elif count >= MOST_SOCKETS:
                outboxes.send()
        else:
            self._held += data
            if len(self._held) > MOST_HELD:
                self.flush()

    def flush_early(self) -> None:
        """Send what is held now and not at the turn's end, if few sockets are written to in this turn and the last."""
        if len(self._outboxes.waiting) <= FEW_SOCKETS and self._outboxes.before <= FEW_SOCKETS:
            self.flush()

    def flush(self) -> None:
        """Send what is held, unless the socket was closed meanwhile."""
        if self._held:
            data, self._held = self._held, b""
            if not self.transport.is_closing():
                self.transport.write(data)


class Moves(Protocol):
    """A deadline: a time on the monotonic clock, in seconds."""

    at: float | None


class Relay:
    """Writes reads of a stream to a client, as long as they are runs: as they came, or their texts in other words.

    Args:
        runs: what such reads look like.
        outbox: the client's.
        deadline: of the next read.
        idle: seconds from a read to the next one's deadline.
        note: called with when reads with a text came, on the monotonic clock, in seconds: once there are `MOST_TIMES`.
        writer: writes what a chunk of the transfer coding gets; None: reads are written as they came.
    """

    __slots__ = ("_deadline", "_idle", "_note", "_outbox", "_runs", "_texts", "_times", "_writer")

    def __init__(
        self,
        runs: TextRuns,
        outbox: Outbox,
        deadline: Moves,
        idle: float,
        note: Callable[[list[float]], None],
        writer: RunWriter | None,
    ) -> None:
        self._runs = runs
        self._outbox = outbox
        self._deadline = deadline
        self._idle = idle
        self._note = note
        self._writer = writer
        self._texts = 0
        self._times: list[float] = []

    def __call__(self, data: bytes) -> bool:
        """Write a read; False: it is none of these, and nothing was done."""
        if (writer := self._writer) is None:
            if (texts := self._runs.framed(data)) < 0:
                return False
        else:
            if (found := self._runs.framed_texts(data)) is None:
                return False
            texts, data = len(found), _chunk(_written(writer, found)) if found else b""
        self._texts += texts
        now = monotonic()
        # Before the write, after which the client may be known to be slow: then nothing is late.
        self._deadline.at = now + self._idle
        if texts:
            self._times.append(now)
            if len(self._times) == MOST_TIMES:
                self._note_times()
        if data:
            self._outbox.write(data)
        return True

    def end(self) -> int:
        """Note the rest of the times; return how many texts were written since the begin, or since this was called."""
        self._note_times()
        texts, self._texts = self._texts, 0
        return texts

    def _note_times(self) -> None:
        if self._times:
            times, self._times = self._times, []
            self._note(times)


def _written(writer: RunWriter, texts: list[bytes]) -> bytes:
    if not isinstance(writer, tuple):
        return writer(texts)
    begin, end = writer
    return begin + (end + begin).join(texts) + end


def _chunk(data: bytes) -> bytes:
    """A chunk of the transfer coding (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)
