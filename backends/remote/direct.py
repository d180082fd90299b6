"""The fast path to a server: asks it for a plain answer without a task.

Everything that may be unusual is left to the way through a task, which goes on with what was sent: an error, an answer
that is not plain, a connection that is lost, a deadline. Only an answer that is complete is counted here, and a stream
that has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from adapters.optional import PlainClient
from backends.cohorts import Cohorts, Steps, cohorts_of
from backends.direct import StreamSink, WholeSink
from backends.observation import Attempt, Observer, Upstream
from backends.remote.asking import Spoken, encoded
from backends.remote.direct_stream import Counts, DirectStream
from backends.remote.id_source import ids_of
from backends.remote.options import Timeouts
from backends.transport import Exchanger, Transport
from backends.transport.begun import BegunExchange
from schemas.errors import GatewayError
from schemas.ir import Generate

_JSON = (b"application/json",)


class DirectAsking(msgspec.Struct, frozen=True, eq=False):
    """Asks one server.

    Attributes:
        transport: its direct client.
        codecs: the protocols that it speaks, which all read plain answers.
        upstream, timeouts, counts: the backend's.
        cohorts: of the event loop.
    """

    transport: Transport
    codecs: Sequence[Spoken]
    upstream: Upstream
    timeouts: Timeouts
    counts: Counts
    cohorts: Cohorts

    @classmethod
    def of(
        cls, client: Exchanger, codecs: Sequence[Spoken], upstream: Upstream, timeouts: Timeouts, counts: Counts
    ) -> DirectAsking | None:
        """What asks a server so; None where its client or a protocol needs a task."""
        if not isinstance(client, Transport) or not all(isinstance(each.codec, PlainClient) for each in codecs):
            return None
        return cls(client, codecs, upstream, timeouts, counts, cohorts_of(asyncio.get_running_loop()))

    def exchange(self, request: Generate) -> RemoteExchange | None:
        """An exchange for a request as the server is to get it; None: it is to be asked in a task."""
        try:
            codec, outbound = encoded(self.codecs, request)
            plain: PlainClient = codec  # type: ignore[assignment]  # as `of` has found out
            if not plain.answers_plainly(request):
                return None
            begun = self.transport.begin(outbound)
        except GatewayError:
            return None
        return None if begun is None else RemoteExchange(self, plain, request, begun)


class RemoteExchange:
    """One exchange (`backends.direct.DirectExchange`)."""

    __slots__ = ("_asking", "_attempt", "_begun", "_codec", "_request", "_sink", "_stream")

    def __init__(self, asking: DirectAsking, codec: PlainClient, request: Generate, begun: BegunExchange) -> None:
        self._asking = asking
        self._codec = codec
        self._request = request
        self._begun = begun
        self._stream: DirectStream | None = None
        self._sink: WholeSink | None = None

    def send(self) -> None:
        """Send the request."""
        timeouts = self._asking.timeouts
        self._begun.send(timeouts.first_token if self._request.stream else timeouts.whole)

    def hear(self, observer: Observer, sink: WholeSink) -> None:
        """Give the answer to the sink."""
        self._attempt: Attempt = observer.attempt(self._asking.upstream, self._request.model)
        self._sink = sink
        self._begun.listen(self._hear)

    def hear_stream(self, observer: Observer, sink: StreamSink) -> None:
        """Give the stream to the sink."""
        asking = self._asking
        attempt = observer.attempt(asking.upstream, self._request.model)
        self._stream = stream = DirectStream(
            self._begun, self._codec, self._request, sink, attempt, asking.timeouts.idle, asking.counts, asking.cohorts
        )
        self._begun.listen(stream.hear)

    def put_back(self) -> None:
        """Send nothing."""
        self._begun.put_back()

    def get_ready(self) -> None:
        """Make what reads a stream."""
        assert self._stream is not None
        self._stream.get_ready()

    def pause(self) -> None:
        """Wait for nothing more of a stream."""
        assert self._stream is not None
        self._stream.pause()

    def resume(self) -> None:
        """Go on with a stream."""
        assert self._stream is not None
        self._stream.resume()

    def leave(self) -> None:
        """End a stream whose client has left."""
        assert self._stream is not None
        self._stream.leave()

    def hand_over(self) -> Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]:
        """Leave what was sent to a task. The attempt is counted there."""
        self._stream = self._sink = None  # which have this exchange, as below
        self._begun.stop()
        return self._begun.going_on

    def _hear(self) -> None:
        if not self._begun.connection.settled:
            return
        self._begun.stop()
        self._asking.cohorts.join(self._answer())

    def _answer(self) -> Steps:
        """Read the answer and give it to the sink, in steps."""
        asking, begun = self._asking, self._begun
        sink, self._sink = self._sink, None  # which has this exchange: no circle is left to the garbage collector
        if sink is None:  # a task goes on
            return
        body = begun.whole(_JSON)
        try:
            answer = None if body is None else self._codec.read_plain(self._request, body)
        except Exception:  # whatever it is, the task finds it, too
            answer = None
        yield
        if answer is None or not sink.prepare(answer, ids_of(self._codec, self._request, begun.connection.headers)):
            sink.go_on()
            return
        yield
        begun.finish()
        asking.counts.budget.deposit()
        self._attempt.end()
        asking.counts.breaker.record_success()
        yield
        sink.settle()
        yield
        sink.end()
