"""One connection to an upstream: a socket, httptools' parser, and one exchange at a time.

There is no task behind it. Everything that ends an exchange (`release`, `finish`) is synchronous, so no cancellation
can come between a connection and its pool.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from backends.transport.limits import TransportLimits
from schemas.errors import BackendFailed, BackendTimeout, BackendUnavailable, Fault, GatewayError, Incomplete

RawHeaders = list[tuple[bytes, bytes]]


class Connection(asyncio.Protocol):
    """A connection, which its pool lends to one exchange after another.

    Args:
        limits: bounds on what is read.
        on_free: told when an exchange ended and another may begin.
        on_lost: told once, when the socket is gone.
    """

    def __init__(
        self,
        limits: TransportLimits,
        on_free: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self._limits = limits
        self._on_free = on_free
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._socket: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline: float | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._uses = 0
        self.free_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: RawHeaders = []
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._received = self._head_size = 0
        self._headed = self._complete = self._interim = self._surplus = False
        self._reusable = False
        self._paused = False
        self._failure: GatewayError | None = None

    # --- what an exchange does ------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether the socket is still there."""
        return self._socket is not None and not self._socket.is_closing()

    @property
    def stale(self) -> bool:
        """Whether the upstream had closed a connection that was used before: it has not seen this request."""
        return self._uses > 1 and not self._received and not self.open

    def send(self, data: bytes) -> None:
        """Begin an exchange with the bytes of a whole request."""
        self._reset()
        self._uses += 1
        if self._socket is None:
            self._failure = _reset_by_peer()
        else:
            self._socket.write(data)

    async def head(self, deadline: float | None) -> None:
        """Return once `status` and `headers` are there.

        Raises:
            schemas.errors.BackendError: they will not come, or not by `deadline` (of the loop's clock).
        """
        while not self._headed:
            if self._failure is not None:
                raise self._failure
            await self._wait(deadline)

    async def read(self, deadline: float | None) -> bytes:
        """All of the body that has arrived, at least a byte; empty at its end.

        Raises:
            schemas.errors.BackendError: the rest will not come, or not by `deadline`.
        """
        while not self._chunks:
            if self._failure is not None:
                raise self._failure
            if self._complete:
                return b""
            await self._wait(deadline)
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._paused and self._socket is not None:
            self._paused = False
            self._socket.resume_reading()
        return data

    def release(self) -> None:
        """End the exchange. If it is not over, only closing the socket tells the upstream to stop."""
        if self._complete and self._reusable and not self._unsent():
            self._on_free(self)
        else:
            self.abort()

    def finish(self) -> None:
        """End an exchange whose answer is whole, but for bytes that say nothing more: those may still come."""
        if self._complete or not self.open:
            self.release()
            return
        self._chunks.clear()
        self._lingering = self._loop.call_later(self._limits.linger, self.abort)
        if self._paused and self._socket is not None:
            self._paused = False
            self._socket.resume_reading()

    def abort(self) -> None:
        """Close the socket at once."""
        if self._socket is not None:
            self._socket.abort()

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._socket = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("no HTTP/1.1")
        if not self._headed and self._received > self._limits.head:
            self._fail("too many headers")
        if self._lingering is not None:
            self._chunks.clear()
            if self._complete:
                self._lingering.cancel()
                self._lingering = None
                self.release()
        elif self._buffered > self._limits.buffered and not self._paused and self._socket is not None:
            self._paused = True
            self._socket.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone: the end of a body that has no other, else a failure."""
        for timer in (self._lingering, self._watch):
            if timer is not None:
                timer.cancel()
        self._lingering = self._watch = None
        if self._headed and not self._complete and not self._framed() and exc is None:
            self._complete = True
        elif not self._complete and self._failure is None:
            cut = Incomplete("The backend's answer stopped before it was finished.", fault=Fault.TRUNCATED)
            self._failure = cut if self._headed else _reset_by_peer()
        self._socket = None
        self._on_lost(self)
        self._wake()

    # --- httptools' callbacks -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A response where none was asked for any more makes the connection useless, and is not read."""
        if self._complete:
            self._surplus = True
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if self._surplus:
            return
        self.headers.append((name.lower(), value))
        self._head_size += len(name) + len(value) + 4
        if self._head_size > self._limits.head:
            self._fail("too many headers")

    def on_headers_complete(self) -> None:
        """The head is there, unless it is that of an interim response."""
        if self._surplus or self._failure is not None:
            return
        self.status = self._parser.get_status_code()
        self._interim = 100 <= self.status < 200
        if self._interim:
            self.headers = []
        else:
            self._headed = True

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self._surplus:
            self._chunks.append(body)
            self._buffered += len(body)

    def on_message_complete(self) -> None:
        """The response is whole, and says whether another may follow."""
        if not self._interim:
            self._complete = True
            self._reusable = self._parser.should_keep_alive() and not self._surplus

    # --- inside ---------------------------------------------------------------------------------------------------

    def _unsent(self) -> bool:
        return self._socket is not None and self._socket.get_write_buffer_size() > 0

    def _framed(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _fail(self, why: str) -> None:
        if self._failure is None:
            self._failure = BackendFailed(f"The backend's answer could not be read: {why}.", fault=Fault.MALFORMED)
        self.abort()

    def _wait(self, deadline: float | None) -> asyncio.Future[None]:
        """What to await: done once more has come or happened."""
        self._waiter = self._loop.create_future()
        self._deadline = deadline
        if deadline is not None and (self._watch is None or deadline < self._watch.when()):
            self._watch_until(deadline)
        return self._waiter

    def _watch_until(self, deadline: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        """One timer for many waits: most deadlines move on before it rings, and then it is only set again."""
        self._watch = None
        if self._waiter is None or self._waiter.done() or self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._watch_until(self._deadline)
        else:
            late = BackendTimeout("The backend did not answer in time.", fault=Fault.TIMEOUT)
            self._waiter.set_exception(late)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _reset_by_peer() -> GatewayError:
    return BackendUnavailable("The backend closed the connection before it answered.", fault=Fault.RESET)
