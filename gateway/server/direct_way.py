"""The fast path of a connection: requests that are answered without a task, as long as nothing is unusual."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from backends.cohorts import cohorts_of
from backends.transport.outbox import Outbox
from gateway.http.accounting import RequestAccount
from gateway.http.direct.lane import Lane
from gateway.http.direct.request import DirectRequest, Wrap
from gateway.http.direct.stream import StreamedRequest
from gateway.http.entrance import Entrance
from gateway.server.request_head import Framing, Head
from gateway.server.scope import Connected, scope_of


class Answering(Connected, Protocol):
    """A client's connection that also begins tasks."""

    transport: Any
    server_state: Any
    tasks: set[Any]
    loop: asyncio.AbstractEventLoop

    def begin(self, head: Head, begun: tuple[RequestAccount, Wrap] | None = None) -> None:
        """Begin a request in a task, or go on with one."""
        ...

    def pass_on(self, body: bytes, *, is_last: bool) -> None:
        """Pass on a piece of its body."""
        ...

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        ...


class _DefaultHeaders:
    """The headers of every answer as they are sent.

    uvicorn makes a new list once a second; a server that stops adds to the present one.
    """

    __slots__ = ("_count", "_fields", "_lines")

    def __init__(self) -> None:
        self._fields: list[tuple[bytes, bytes]] | None = None
        self._count = 0
        self._lines = b""

    def lines(self, status: int, fields: list[tuple[bytes, bytes]]) -> bytes:
        """The status line, and the lines of these fields."""
        if fields is not self._fields or len(fields) != self._count:
            self._fields, self._count = fields, len(fields)
            self._lines = b"".join([b"%b: %b\r\n" % field for field in fields])
        return STATUS_LINE[status] + self._lines


_default_headers = _DefaultHeaders()


class DirectWay:
    """Begins such requests, writes their answers, and has tasks go on with those that turn out unusual.

    Args:
        connection: the client's.
        entrance: knows the lanes of heads; None: there are none.

    Attributes:
        body: of the request that is being answered; None: there is none.
        request: that one, once it was sent to a server.
    """

    __slots__ = (
        "_cohorts",
        "_connection",
        "_entrance",
        "_guard",
        "_head",
        "_is_last",
        "_lane",
        "_lanes",
        "body",
        "request",
    )

    def __init__(self, connection: Answering, entrance: Entrance | None) -> None:
        self._connection = connection
        self._entrance = entrance
        self._cohorts = cohorts_of(connection.loop)
        self._head: Head
        # Of its last head: those with the same lanes differ in the length of the body alone.
        self._lanes: dict[tuple[str, int | None] | None, Lane | None] | None = None
        self._lane: Lane | None = None
        self.body: bytes | None = None
        self.request: DirectRequest | None = None
        self._is_last = False  # whether the connection ends with it
        self._guard: asyncio.Future[None] | None = None

    @property
    def write_paused(self) -> bool:
        """Whether the client has not taken what was written to it."""
        return bool(self._connection.flow.write_paused)

    def takes(self, head: Head) -> bool:
        """Whether requests with a head may be answered so."""
        return self._lane_of(head) is not None

    def begin(self, head: Head, body: bytes) -> bool:
        """Begin a request, which is not the last one; False if it needs a task, as far as the head tells."""
        connection = self._connection
        lane = self._lane if head.lanes is self._lanes else self._lane_of(head)
        if lane is None or connection.flow.write_paused:
            return False
        connection.transport.taken_at = None
        self._head, self.body = head, body
        self._cohorts.join(lane.begin(self, body, monotonic()))
        return True

    def answer(self, status: int, fields: bytes, body: bytes) -> None:
        """Write the answer."""
        self.body = self.request = None
        connection = self._connection
        common = _default_headers.lines(status, connection.server_state.default_headers)
        connection.transport.write(b"%b%b\r\n%b" % (common, fields, body))
        connection.on_response_complete()

    def open(self, fields: bytes, data: bytes) -> Outbox:
        """Write the head of a stream and its first data."""
        outbox: Outbox = self._connection.transport.outbox
        common = _default_headers.lines(200, self._connection.server_state.default_headers)
        outbox.write(b"%b%btransfer-encoding: chunked\r\n\r\n%b" % (common, fields, data))
        return outbox

    def end(self, *, cut: bool = False) -> None:
        """End it."""
        connection = self._connection
        self._forget()
        if not cut:
            connection.transport.write(b"0\r\n\r\n")
        if cut or self._is_last:
            connection.transport.close()
        connection.on_response_complete()

    def pause(self) -> None:
        """Learn that the client is slow."""
        if (stream := self._stream) is not None:
            stream.pause()

    def resume(self) -> None:
        """Learn that it is not any more."""
        if (stream := self._stream) is not None:
            stream.resume()

    def lose_client(self) -> bool:
        """End a stream whose client has left; False: none has begun."""
        if (stream := self._stream) is None:
            return False
        self._forget()
        stream.lose_client()
        return True

    def close_after(self) -> bool:
        """Have the connection end with the stream that has begun; False: none has."""
        self._is_last = self._stream is not None
        return self._is_last

    def shut_down(self) -> bool:
        """The same for a server that stops: it waits for its tasks, and cancels them in the end."""
        if (stream := self._stream) is None:
            return False
        if self._guard is not None:
            return True
        tasks, self._is_last = self._connection.tasks, True
        # Nothing has to run meanwhile: a future is enough.
        self._guard = guard = self._connection.loop.create_future()
        tasks.add(guard)
        guard.add_done_callback(tasks.discard)
        guard.add_done_callback(lambda ended: stream.cancel() if ended.cancelled() else None)
        return True

    def go_on(self) -> None:
        """Have a task answer the request."""
        assert self.body is not None
        body, request = self.body, self.request
        self.body = self.request = None
        self._connection.begin(self._head, None if request is None else request.hand_over())
        self._connection.pass_on(body, is_last=True)

    @property
    def _stream(self) -> StreamedRequest | None:
        """The request whose stream has begun."""
        request = self.request
        return request if isinstance(request, StreamedRequest) and request.streams else None

    def _forget(self) -> None:
        """Note the end of a stream."""
        self.body = self.request = None
        if self._guard is not None and not self._guard.done():
            self._guard.set_result(None)

    def _lane_of(self, head: Head) -> Lane | None:
        connection, lanes = self._connection, head.lanes
        if lanes is None or self._entrance is None or head.framing is Framing.CHUNKED:
            return None
        if not head.keeps_alive or head.expects_continue:
            return None
        if connection.server not in lanes:
            lanes[connection.server] = self._entrance.lane(scope_of(connection, head))
        self._lanes, self._lane = lanes, lanes[connection.server]
        return self._lane
