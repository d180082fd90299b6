"""Reads a streamed answer: bytes from a socket to batches of events.

One read may hold events and, behind them, what breaks the stream. The events are then returned first and the failure is
raised by the next call, so that a client that is cut off has received all there was.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from adapters.base import StreamDecoder
from adapters.optional import RunDecoder
from backends.base import Sink
from backends.transport import Response
from schemas.errors import BackendTimeout, Fault, GatewayError, Incomplete
from schemas.ir import Delta, Events


class AnswerDecoder:
    """Decodes the body of one streamed answer. A subclass sets `_decoder`, of the response's protocol.

    Attributes:
        failure: of bytes behind events that were returned.
    """

    __slots__ = ("_decoder", "failure")
    _decoder: StreamDecoder

    def __init__(self) -> None:
        self.failure: GatewayError | None = None

    def decode(self, data: bytes) -> Events:
        """The events completed by these bytes; a failure behind some is kept in `failure`.

        Raises:
            schemas.errors.GatewayError: there are none before it.
        """
        try:
            return self._decoder.feed(data)
        except GatewayError as error:
            # No events are due, so the failure need not wait for the next call.
            if not self._decoder.before:
                raise
            self.failure = error
            return self._decoder.before

    def close(self, error: GatewayError) -> Events:
        """Return the events still due at the end of the stream, or raise `error` if the answer is not finished.

        The decoder decides whether an answer is whole, not the socket: servers cut connections after a complete answer.
        """
        # The decoder's own `Incomplete` is dropped: `error` says why the stream ended (idle, cut off, timed out).
        with suppress(Incomplete):
            if events := self._decoder.close():
                return events
        raise error


class EventStream(AnswerDecoder):
    """The events of one streamed answer.

    Args:
        response: whose body is read.
        decoder: of the response's protocol.
        idle: the most seconds between two batches of events. Bytes that complete no event do not count, so a server
            that only sends keep-alive comments is cut off.
    """

    __slots__ = ("_idle", "_loop", "_response", "_run", "_sink", "_until")

    def __init__(self, response: Response, decoder: StreamDecoder, idle: float) -> None:
        super().__init__()
        self._decoder = decoder
        self._response = response
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._sink: Sink | None = None

    def feed_into(self, sink: Sink) -> None:
        """Give what comes while `read` waits to the sink, as far as it is a run of texts; `read` returns the rest."""
        if isinstance(self._decoder, RunDecoder):
            self._sink, self._run = sink, self._decoder.run
            self._response.offer(self._feed)

    def _feed(self, data: bytes) -> float | None:
        """Give a read to the sink; returns the deadline of the next one, or None if `read` is to have this one."""
        if self._sink is None or not self._sink.ready() or not (events := self._run(data)):
            return None
        self._sink.take(events)
        self._until = self._loop.time() + self._idle
        return self._until

    async def first(self, deadline: float) -> Events:
        """Read the first events, at least one.

        A failure before any text is raised at once instead of after the events: the request can still be retried.

        Raises:
            schemas.errors.GatewayError: there are none by `deadline` (of the event loop's clock), or no text before a
                failure.
        """
        events = await self.read(deadline)
        # `Finished` is a `Delta`, too. Before the first delta, another attempt repeats no text.
        if self.failure is not None and not any(isinstance(event, Delta) for event in events):
            raise self.failure
        return events

    async def read(self, deadline: float | None = None) -> Events:
        """Read the next events, at least one, by `deadline` or else within `idle` seconds.

        Raises:
            schemas.errors.GatewayError: there are none, although the answer is not finished.
        """
        if self.failure is not None:
            raise self.failure
        # Set outside the loop: bytes that complete no event must not renew the deadline. What the sink takes does.
        self._until = self._loop.time() + self._idle if deadline is None else deadline
        events: Events = ()
        while not events:
            try:
                data = await self._response.read(self._until)
            except BackendTimeout as timeout:
                # Before the first event the timeout itself is the error; later the answer is incomplete.
                return self.close(idle_error() if deadline is None else timeout)
            except Incomplete as truncated:
                return self.close(truncated)
            # The body has ended. Whether the answer is complete is for the decoder to say.
            if not data:
                return self.close(truncated_error())
            events = self.decode(data)
        return events


def idle_error() -> Incomplete:
    """The error of a stream of which nothing comes."""
    return Incomplete("The backend's stream stalled before it was finished.", fault=Fault.IDLE)


def truncated_error() -> Incomplete:
    """The error of a stream whose body ends too early."""
    return Incomplete("The backend's stream ended before it was finished.", fault=Fault.TRUNCATED)
