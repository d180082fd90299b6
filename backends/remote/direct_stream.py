"""A streamed answer without a task: decoded and given to its sink in the callbacks of the server's socket.

Strategy: nothing is taken off the connection before the first events are there, so that until then a task can go on as
if nothing had been read. From then on every end is one here, since no end needs a wait. The usual read of a stream is
whole chunks of the transfer coding with one text each, between bytes that are known: these pass the parsers by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from adapters.base import ClientCodec, StreamDecoder
from adapters.optional import FramedRunDecoder, finds_framed_runs
from backends.cohorts import Cohorts, Steps
from backends.direct import StreamSink
from backends.observation import Attempt
from backends.remote.event_stream import AnswerDecoder, idle_error, truncated_error
from backends.remote.id_source import ids_of, marked
from backends.remote.resilience.breaker import Breaker
from backends.remote.resilience.retry import RetryBudget
from backends.transport.begun import BegunExchange
from backends.transport.outbox import Relay
from schemas.errors import BackendTimeout, GatewayError, Incomplete
from schemas.ir import Delta, Events, Generate, Usage

_EVENTS = (b"text/event-stream",)
Take = Callable[[Events], None]
_MOST_BEFORE = 4096
"""Bytes before the first event that are read anew with each that follows; a task reads them once."""


class Counts(msgspec.Struct, frozen=True, eq=False):
    """What a backend notes of its answers.

    Attributes:
        breaker, budget: the backend's.
        redact: takes secrets out of errors.
    """

    breaker: Breaker
    budget: RetryBudget
    redact: Callable[[GatewayError], GatewayError]


class DirectStream(AnswerDecoder):
    """One streamed answer.

    Args:
        begun: the exchange.
        codec: of the server's protocol.
        request: as it was sent.
        sink: gets the events.
        attempt: who listens.
        idle: the most seconds between two batches of events.
        counts: the backend's.
        cohorts: of the event loop.
    """

    __slots__ = (
        "_attempt",
        "_begun",
        "_codec",
        "_cohorts",
        "_connection",
        "_counts",
        "_fresh",
        "_has_joined",
        "_idle",
        "_relay",
        "_request",
        "_runs",
        "_sink",
    )

    def __init__(
        self,
        begun: BegunExchange,
        codec: ClientCodec,
        request: Generate,
        sink: StreamSink,
        attempt: Attempt,
        idle: float,
        counts: Counts,
        cohorts: Cohorts,
    ) -> None:
        super().__init__()
        self._cohorts = cohorts
        self._has_joined = False
        self._begun = begun
        self._connection = begun.connection
        self._codec = codec
        self._request = request
        self._fresh: StreamDecoder | None = None  # has read nothing
        self._sink = sink
        self._attempt = attempt
        self._idle = idle
        self._counts = counts
        self._runs: FramedRunDecoder | None = None
        self._relay: Relay | None = None  # has written texts of which the decoder does not know yet

    def hear(self) -> None:
        """Look at what has come of the answer with others whose answers begin in the same turn."""
        connection = self._connection
        # A head alone needs no look yet.
        if not self._has_joined and ((connection.head_complete and connection.pieces) or connection.settled):
            self._has_joined = True
            self._cohorts.join(self._answer())

    def _answer(self) -> Steps:
        """Begin the answer if its first events are there, or else have a task go on if they will not come plainly."""
        connection, self._has_joined = self._connection, False
        if connection.listener is None:  # a task goes on
            return
        events: Events | None = None
        if self._begun.has_type(_EVENTS):
            events, read = self._first()
        yield
        if events is None or (not events and (connection.settled or len(connection.peek()) > _MOST_BEFORE)):
            self._sink.go_on()
        elif events and self._begin(events):
            yield
            self._go_on_behind(events, read)

    def get_ready(self) -> None:
        """Make the decoder, which is else made when the answer comes."""
        self._fresh = self._codec.decoder(self._request)

    def pause(self) -> None:
        """Wait for nothing more."""
        self._leave_runs()
        self._connection.listen(self._read, None)

    def resume(self) -> None:
        """Go on."""
        self._expect_more()
        self._read()

    def leave(self) -> None:
        """End the answer, whose client has left."""
        self._leave_runs()
        self._attempt.end(asyncio.CancelledError())
        self._connection.release()

    def _first(self) -> tuple[Events | None, int]:
        """The events of the answer's first pieces, and how many those are; None: they are for a task.

        Those behind the first text are left: it does not wait until they are decoded.
        """
        connection, read = self._connection, 0
        events: Events = ()
        if not connection.pieces:
            return events, read
        self._decoder, self._fresh = self._fresh or self._codec.decoder(self._request), None
        try:
            # Without events a new decoder gets these pieces again, with more behind them.
            for read, piece in enumerate(connection.pieces, 1):  # noqa: B007 - the last one is returned
                events = (*events, *self._decoder.feed(piece))
                if events and type(last := events[-1]) is Delta and last.text and not connection.settled:
                    break
        except Exception:  # whatever it is, the task finds it, too
            return None, 0
        return events, read

    def _begin(self, events: Events) -> bool:
        """Give the first events to the sink; False: it needs no more of them."""
        try:
            ids = ids_of(self._codec, self._request, self._connection.headers)
            if not self._sink.begin(marked(events, ids)):
                self._sink.go_on()
                return False
        except Exception as error:
            self._counts.budget.deposit()
            self._break(error)
            return False
        return True

    def _go_on_behind(self, events: Events, read: int) -> None:
        """Go on behind the first events, those of so many pieces."""
        self._connection.drop(read)
        self._counts.budget.deposit()
        if self._ended(events):
            return
        decoder = self._decoder
        self._runs = decoder if finds_framed_runs(decoder) else None
        self._expect_more()
        if self._connection.pieces:  # more has come with them
            self._read(self._sink.take_rest)
        elif self._connection.settled:  # the end has
            self._read()
        else:
            self._look_for_runs()

    def _read(self, take: Take | None = None) -> None:
        """Give what has come to the sink; `take`: how it takes the next events."""
        connection, sink = self._connection, self._sink
        self._leave_runs()
        while not sink.full:
            try:
                events = self._next()
            except GatewayError as error:
                self._fail(error)
                return
            except Exception as error:  # a bug of the decoder
                self._break(error)
                return
            if not events:
                break
            try:
                (take or sink.take)(events)
            except Exception as error:
                self._break(error)
                return
            take = None
            if self._ended(events):
                return
            self._expect_more()
            if self.failure is None and not connection.settled:
                break
        self._look_for_runs()

    def _next(self) -> Events:
        """The next events; () if they have not come yet.

        Raises:
            schemas.errors.GatewayError: they will not come.
        """
        if self.failure is not None:
            raise self.failure
        connection = self._connection
        while data := connection.peek():
            connection.drop()
            if events := self.decode(data):
                return events
        try:
            return self.close(truncated_error()) if connection.has_ended() else ()
        except BackendTimeout:
            return self.close(idle_error())
        except Incomplete as truncated:
            return self.close(truncated)

    def _expect_more(self) -> None:
        """Wait for the next events, unless the sink is full: then nothing is late."""
        self._connection.listen(self._read, None if self._sink.full else self._connection.time() + self._idle)

    def _look_for_runs(self) -> None:
        if self._runs is not None and not self._sink.full:
            self._connection.relay = self._find_run

    def _leave_runs(self) -> None:
        """Have the decoder get what comes, and know of the texts that were written without it."""
        self._connection.relay = None
        if self._relay is not None:
            assert self._runs is not None
            relay, self._relay = self._relay, None
            self._runs.pass_by(relay.end())

    def _find_run(self, data: bytes) -> bool:
        """Ask the decoder for runs, and have the sink take this read if it is one; False if it is none.

        This is done when the read comes, and not before: the events before it do not wait for the search.
        """
        assert self._runs is not None
        connection, sink, relay = self._connection, self._sink, None
        if (found := self._runs.framed_runs()) is not None:
            runs, as_they_came = found
            writer = None if as_they_came else sink.run_writer(runs.choice)
            if as_they_came or writer is not None:
                relay = Relay(runs, sink.outbox, connection.deadline, self._idle, sink.note_times, writer)
        connection.relay = self._relay = relay
        return relay is not None and relay(data)

    def _ended(self, events: Events) -> bool:
        """End the answer if these were its last events."""
        if type(events[-1]) is not Usage:
            return False
        self._begun.finish()
        self._attempt.end()
        self._counts.breaker.record_success()
        self._sink.end()
        return True

    def _fail(self, error: GatewayError) -> None:
        """End an answer that the server has not completed."""
        self._attempt.end(error)
        self._counts.breaker.record_failure(error)
        self._connection.release()
        self._sink.fail(self._counts.redact(error))

    def _break(self, error: Exception) -> None:
        """End an answer that cannot be passed on."""
        self.leave()
        self._sink.fail(error)
