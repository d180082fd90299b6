"""The transport of a client's connection: sends what one turn of the event loop writes at once, and closes without a
reset.

uvicorn writes headers and body separately. What is written is uvicorn's, byte for byte and in order.

A socket that is closed while bytes of the client are unread resets the connection, and the reset may overtake the
answer: the client then sees no 413, but a broken pipe. Such a connection lingers (RFC 9112, section 9.6): its sending
side is closed, and what still comes is read and dropped for a moment.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any

from backends.transport.outbox import Outbox, outboxes_of

_MOST_DROPPED = 64 * 1024 * 1024
"""Bytes that a lingering connection reads at most."""

_HUNG_UP = getattr(select, "POLLRDHUP", 0)
"""Linux tells of an end that comes behind unread bytes; POLLHUP and POLLERR are always reported."""


class ClientTransport:
    """A transport with an outbox (`backends.transport.outbox`). Everything else is the wrapped transport's.

    Args:
        transport: the socket's.
        loop: the connection's.
        unread: whether bytes of the client may still be unread.
        read_again: resumes reading, so that the rest can be dropped.

    Attributes:
        outbox: the socket's.
        write: the outbox's.
        taken_at: when the number of bytes that the client has taken last grew, on the loop's clock. None: nobody has
            looked since the present answer began, as it is to be set then: between answers there is nothing to take.
        lingering_since: when it began to linger, likewise; None before.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        unread: Callable[[], bool],
        read_again: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._unread = unread
        self._read_again = read_again
        self.outbox = Outbox(transport, outboxes_of(loop))
        self.write = self.outbox.write
        self._dropped = 0
        self._taken = 0  # bytes, by the client
        self.taken_at: float | None = None
        self.lingering_since: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Write what was held back, and close, at once or after lingering. Idempotent."""
        if self._unread():
            self.linger()
        elif not self.is_closing():
            self.outbox.flush()
            self._transport.close()

    def linger(self) -> None:
        """Write what was held back, end the sending side, and read on for a while. Idempotent."""
        if self.is_closing():
            return
        self.outbox.flush()
        self._read_again()
        if not self._transport.can_write_eof():
            # TLS closes with an exchange of its own, during which it drops what still comes.
            self._transport.close()
            return
        self.lingering_since = self._loop.time()
        self._transport.write_eof()

    def is_closing(self) -> bool:
        """Whether nothing more is to be written."""
        return self.lingering_since is not None or self._transport.is_closing()

    def drop(self, size: int) -> None:
        """Count bytes that came while lingering; too many end it."""
        self._dropped += size
        if self._dropped > _MOST_DROPPED:
            self._transport.abort()

    def has_stalled(self, now: float, limit: float) -> bool:
        """Whether the client has taken nothing of what is written for `limit` seconds, or a quarter more."""
        # The kernel is asked four times within the limit, and not in each sweep.
        if self.taken_at is not None and now - self.taken_at < limit / 4:
            return False
        waiting = self.outbox.unsent + _unsent(self._transport.get_extra_info("socket"))
        taken = self.outbox.written - waiting
        if waiting == 0 or taken > self._taken or self.taken_at is None:
            self._taken, self.taken_at = taken, now
        return now - self.taken_at > limit

    def has_hung_up(self) -> bool:
        """Whether the client has left, or has ended its sending side, with bytes still unread."""
        found: socket.socket | None = self._transport.get_extra_info("socket")
        if found is None or found.fileno() < 0:  # lost, as the protocol learns in the next turn of the event loop
            return True
        poll = select.poll()
        poll.register(found.fileno(), _HUNG_UP)
        return bool(poll.poll(0))


def _unsent(found: socket.socket | None) -> int:
    """Bytes in the kernel that the client has not acknowledged; 0 where the system cannot tell."""
    if found is None or found.fileno() < 0:
        return 0
    # tcp(7), SIOCOUTQ: the same number as TIOCOUTQ. Without it, megabytes in the kernel's buffer would look taken.
    try:
        answer = fcntl.ioctl(found.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int(struct.unpack("i", answer)[0])
