"""One connection to an upstream: a socket, httptools' parser, and one exchange at a time.

Strategy (sections are RFC 9112's):
- No task stands behind a connection. Everything that ends an exchange (`release`, `finish`, `abort`) is synchronous, so
  no cancellation can come between a connection and its pool, and no slot of the pool is lost.
- No pipelining (9.3.2): an answer that is generated slowly would block all requests behind it (head-of-line blocking).
- A connection is reused only if the response was complete, the upstream keeps it open (9.3), the whole request was
  sent, and nothing came after the response. In all other cases it is closed, because what would be read next may belong
  to another exchange (9.2).
- A body ends with its last chunk or its length (6.3, 7.1). Without either it ends with the connection, and only then is
  a closed connection no error (8).
- Back-pressure: the socket is not read while too much of the body waits for the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from backends.transport.deadline import Deadline
from backends.transport.limits import TransportLimits
from backends.transport.outbox import Outbox, outboxes_of
from backends.transport.received import ReceivedResponse
from schemas.errors import BackendTimeout, BackendUnavailable, Fault, GatewayError, Incomplete

_LONGEST_RACE = 1.0
"""Seconds from sending a request until the end of a connection that the upstream had closed before: a round trip."""


class Connection(ReceivedResponse):
    """A connection, which its pool lends to one exchange after another. An `asyncio.Protocol` by its methods.

    `time` is the event loop's clock, `idle_since` when the pool got the connection back. `take` gets the bytes of this
    response's body for which `read` waits: it returns the deadline of the next ones, or None if `read` is to return
    these. `listener` is called instead of waking anybody (`listen`), and before it `relay` gets what comes where a
    chunk of the body begins: it returns whether that was whole chunks and it has taken them. `deadline` is that of what
    is waited for. `opening` is whether there is no socket yet.

    Args:
        limits: bounds on what is read.
        on_idle: called when an exchange ended and another may begin.
        on_closed: called once, when the socket is closed.
        opening: whether it is lent already and sends its first request once the socket is there.
    """

    __slots__ = (
        "_first",
        "_late",
        "_linger_timer",
        "_loop",
        "_on_closed",
        "_on_idle",
        "_outbox",
        "_paused",
        "_sent_at",
        "_uses",
        "_waiter",
        "deadline",
        "idle_since",
        "listener",
        "opening",
        "relay",
        "take",
        "time",
    )

    def __init__(
        self,
        limits: TransportLimits,
        on_idle: Callable[[Connection], None],
        on_closed: Callable[[Connection], None],
        *,
        opening: bool = False,
    ) -> None:
        super().__init__(limits)
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        self._outbox: Outbox | None = None  # there as long as the socket
        self.opening = opening
        self._first = b""  # what is sent then
        # One exchange at a time and one reader per exchange: a single future is enough to wake whoever waits.
        self._waiter: asyncio.Future[None] | None = None
        self.deadline = Deadline(self._loop, self._on_deadline)
        self._linger_timer: asyncio.TimerHandle | None = None
        self._uses = 0  # exchanges begun; above 1 the connection was reused
        self._sent_at = 0.0
        self.idle_since = 0.0

    # `_uses` and the deadline outlive an exchange.
    def _reset(self) -> None:
        """Forget the last exchange."""
        super()._reset()
        self._paused = self._late = False
        self.take: Callable[[bytes], float | None] | None = None
        self.relay: Callable[[bytes], bool] | None = None
        self.listener: Callable[[], None] | None = None

    # --- for an exchange --------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether the socket is open, as far as is known."""
        return self._outbox is not None and not self._outbox.transport.is_closing()

    @property
    def stale(self) -> bool:
        """Whether the upstream closed a reused connection at once, without a byte of an answer: the keep-alive race.

        Its keep-alive timeout ran out while the request was on its way, so it did not read the request. That is why the
        request may be sent again although a POST is not idempotent (9.3.1). On a new connection, or later than the
        request takes on its way, the same end means that the upstream failed: it may have worked on the answer.
        """
        # `_received` counts since `send`, so the bytes of earlier responses do not hide the race.
        at_once = self.time() - self._sent_at < _LONGEST_RACE
        return self._uses > 1 and not self._received and not self.open and at_once

    def send(self, data: bytes) -> None:
        """Begin an exchange with the bytes of a whole request."""
        outbox = self._outbox
        if outbox is not None:  # first: what follows is done while the server works
            outbox.write(data)
            outbox.flush_early()
        self._reset()
        self._uses += 1
        self._sent_at = self.time()
        if self.opening:
            self._first = data
        elif outbox is None:  # closed between `acquire` and here
            self._failure = _reset_by_peer()

    def listen(self, listener: Callable[[], None], deadline: float | None) -> None:
        """Call `listener` whenever more of the response has come, when it ends or fails, and at the deadline."""
        self.listener = listener
        self.deadline.set(deadline)

    @property
    def settled(self) -> bool:
        """Whether a listener waits in vain: the response is complete, has failed, is late, or nothing is read on."""
        return self._complete or self._failure is not None or self._paused or self._late

    def has_ended(self) -> bool:
        """Whether all of the body has arrived.

        Raises:
            schemas.errors.BackendError: the rest will not arrive, or is late.
        """
        if self._failure is not None:
            raise self._failure
        if self._late and not self._complete:
            raise _timeout()
        return self._complete

    async def receive_head(self, deadline: float | None) -> None:
        """Return once `status` and `headers` have arrived.

        Raises:
            schemas.errors.BackendError: they will not arrive, or not by `deadline` (of the event loop's clock).
        """
        # A loop, because every packet wakes the waiter, whether or not it completes the head.
        while not self.head_complete:
            if self._failure is not None:
                raise self._failure
            await self._wait(deadline)

    async def read(self, deadline: float | None) -> bytes:
        """All of the body that has arrived, at least a byte; empty at its end.

        Raises:
            schemas.errors.BackendError: the rest will not arrive, or no byte of it by `deadline`.
        """
        # Order: bytes that arrived are returned before the failure or the end that followed them.
        while not self.pieces:
            if self._failure is not None:
                raise self._failure
            if self._complete:
                return b""
            await self._wait(deadline)
            deadline = self.deadline.at  # later, if `take` has got something meanwhile
        data = self.peek()
        self.drop()
        return data

    def drop(self, pieces: int | None = None) -> None:
        """Take that as read, or so many pieces of it."""
        if pieces is not None and pieces < len(self.pieces):
            self._buffered -= sum(len(self.pieces.popleft()) for _ in range(pieces))
            return
        self.pieces.clear()
        self._buffered = 0
        if self._paused:
            self._resume()

    def whole(self, limit: int) -> bytes | None:
        """The body if it has come as a whole and has at most `limit` bytes; None: it is to be read."""
        if not self._complete or self._failure is not None or self._paused or self._buffered > limit:
            return None
        return self.peek()

    def release(self) -> None:
        """End the exchange. Unless the response is complete, the socket is closed: that tells the upstream to stop."""
        # Unsent bytes: the upstream answered before it had read the whole request (a 413, say), and may never read the
        # rest. The next request would wait behind it (9.5).
        self.take = self.relay = self.listener = None
        if self._complete and self._reusable and not self._unsent():
            self.pieces.clear()
            self._on_idle(self)
        else:
            self.abort()

    def finish(self) -> None:
        """End an exchange whose answer is complete, although the end of the body may not have arrived.

        A stream's last event often comes a packet before the last chunk. The connection waits for that chunk, at most
        `linger` seconds, and is then reused; what else arrives meanwhile is dropped.
        """
        # Both ends are known already: reuse the connection, or free its slot.
        if self._complete or not self.open:
            self.release()
            return
        self.pieces.clear()
        self.take = self.relay = self.listener = None
        # Until the timer fires, the connection stays lent and keeps its slot in the pool.
        self._linger_timer = self._loop.call_later(self._limits.linger, self.abort)
        # A paused socket would never deliver the last chunk.
        self._resume()

    def abort(self) -> None:
        """Close the socket at once, or as soon as it is there."""
        self._first = b""
        if self._outbox is not None:
            # `connection_lost` follows in a later turn of the loop. Until then `open` is false and the slot is taken.
            self._outbox.transport.abort()

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the socket."""
        self._outbox = outbox = Outbox(cast(asyncio.Transport, transport), outboxes_of(self._loop))
        if self.opening:
            self.opening = False
            if self._first:
                outbox.write(self._first)
            else:  # whoever had it has left
                outbox.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the response, and wake whoever waits for them."""
        if self._at_chunk and self.relay is not None and self.relay(data):
            return  # the parser knows nothing of these chunks, and need not
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        # An upgrade (101) is an error as well: no request asks for one.
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("no HTTP/1.1")
        # A header line without an end calls no callback, so `on_header` alone would not bound the head.
        if not self.head_complete and self._received > self._limits.head:
            self._fail("too many headers")
        if self._linger_timer is not None:  # the exchange has ended; only the end of its response is awaited
            self.pieces.clear()
            if self._complete:
                self._linger_timer.cancel()
                self._linger_timer = None
                self.release()
        # Checked after the data was kept, so the buffer exceeds its bound by one read of the socket at most.
        elif self._buffered > self._limits.buffered and not self._paused and self._outbox is not None:
            self._paused = True
            self._outbox.transport.pause_reading()
        if self.listener is not None:
            # RFC 9112, section 7.1: behind a chunk's CRLF comes a line, whose end the parser tells.
            self._at_chunk = self._at_chunk and data.endswith(b"\r\n")
            self.listener()
        elif self.take is None or not self._taken(self.take):
            self._notify()

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete a body that ends with the connection; fail every other response that is not complete."""
        self.deadline.cancel()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        # `exc` is None after a FIN. After a reset even a body without framing is not known to be whole.
        if self.head_complete and not self._complete and not self._has_framing() and exc is None:
            # Close-delimited body (6.3, item 8): the end of the connection is the end of the body.
            self._complete = True
        elif not self._complete and self._failure is None:
            truncated = Incomplete("The backend's answer stopped before it was finished.", fault=Fault.TRUNCATED)
            self._failure = truncated if self.head_complete else _reset_by_peer()
            self._failure.__cause__ = exc  # TLS 1.3: a server refuses a client's certificate only after the handshake
        self._close()

    def fail_to_open(self, error: GatewayError) -> None:
        """Fail the first exchange: there will be no socket."""
        self.opening = False
        self._failure = error
        self._close()

    def _close(self) -> None:
        # Cleared before the pool is called, so that the pool and the waiter see a closed connection.
        self._outbox = None
        self._on_closed(self)
        if self.listener is not None:
            self.listener()
        else:
            self._notify()

    def eof_received(self) -> None:
        """Nothing: the transport closes the connection."""

    pause_writing = resume_writing = eof_received  # nothing: a request is written as a whole

    def _taken(self, take: Callable[[bytes], float | None]) -> bool:
        """Offer what has come of the body, if all that came before was read and more will come."""
        if self._waiter is None or self._waiter.done() or not self.pieces or self._paused:
            return False
        if self._complete or self._failure is not None:
            return False
        try:
            deadline = take(self.peek())
        except Exception as error:  # whoever waits is to know
            self._waiter.set_exception(error)
            return True
        if deadline is None:
            return False
        self.pieces.clear()
        self._buffered, self.deadline.at = 0, deadline
        return True

    # --- internals --------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        if self._paused and self._outbox is not None:
            self._paused = False
            self._outbox.transport.resume_reading()

    def _unsent(self) -> bool:
        return self._outbox is not None and self._outbox.unsent > 0

    def _wait(self, deadline: float | None) -> asyncio.Future[None]:
        """A future that is done once more has arrived, and fails at the deadline."""
        self._waiter = self._loop.create_future()
        self.deadline.set(deadline)
        return self._waiter

    def _on_deadline(self) -> None:
        """Fail the waiter. Nobody may wait at this moment: then the next one sets the deadline anew."""
        if self.listener is not None:
            self._late = True
            self.listener()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(_timeout())

    def _notify(self) -> None:
        # `done`: the waiter timed out, was cancelled with its task, or was woken by an earlier callback of this turn.
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _reset_by_peer() -> GatewayError:
    return BackendUnavailable("The backend closed the connection before it answered.", fault=Fault.RESET)


def _timeout() -> GatewayError:
    return BackendTimeout("The backend did not answer in time.", fault=Fault.TIMEOUT)
