"""The fast path of a connection: requests that are answered without a task, as long as nothing is unusual."""

from __future__ import annotations

from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.http.accounting import RequestAccount
from gateway.http.direct.lane import Lane
from gateway.http.direct.request import DirectRequest, Wrap
from gateway.http.entrance import Entrance
from gateway.server.request_head import Framing, Head
from gateway.server.scope import Connected, scope_of


class Answering(Connected, Protocol):
    """A client's connection that also begins tasks."""

    transport: Any
    server_state: Any

    def begin(self, head: Head, begun: tuple[RequestAccount, Wrap] | None = None) -> None:
        """Begin a request in a task, or go on with one."""
        ...

    def pass_on(self, body: bytes, *, is_last: bool) -> None:
        """Pass on a piece of its body."""
        ...

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        ...


class DirectWay:
    """Begins such requests, writes their answers, and has tasks go on with those that turn out unusual.

    Args:
        connection: the client's.
        entrance: knows the lanes of heads; None: there are none.

    Attributes:
        begun: the request that is being answered, with its head and body; None: there is none.
    """

    __slots__ = ("_connection", "_entrance", "begun")

    def __init__(self, connection: Answering, entrance: Entrance | None) -> None:
        self._connection = connection
        self._entrance = entrance
        self.begun: tuple[DirectRequest, Head, bytes] | None = None

    def takes(self, head: Head) -> bool:
        """Whether requests with a head may be answered so."""
        return self._lane(head) is not None

    def begin(self, head: Head, body: bytes) -> bool:
        """Begin a request, which is not the last one; False if it needs a task."""
        connection = self._connection
        lane = self._lane(head)
        if lane is None or connection.flow.write_paused:
            return False
        request = lane.begin(body)
        if request is None:
            return False
        connection.transport.begin_answer()
        self.begun = request, head, body
        request.send(self)
        return True

    def answer(self, status: int, fields: bytes, body: bytes) -> None:
        """Write the answer."""
        self.begun, connection = None, self._connection
        common = b"".join([b"%b: %b\r\n" % field for field in connection.server_state.default_headers])
        connection.transport.write_whole(b"%b%b%b\r\n%b" % (STATUS_LINE[status], common, fields, body))
        connection.on_response_complete()

    def go_on(self) -> None:
        """Have a task answer the request."""
        assert self.begun is not None
        (request, head, body), self.begun = self.begun, None
        self._connection.begin(head, request.hand_over())
        self._connection.pass_on(body, is_last=True)

    def _lane(self, head: Head) -> Lane | None:
        connection, lanes = self._connection, head.lanes
        if lanes is None or self._entrance is None or head.framing is Framing.CHUNKED:
            return None
        if not head.keeps_alive or head.expects_continue:
            return None
        if connection.server not in lanes:
            lanes[connection.server] = self._entrance.lane(scope_of(connection, head))
        return lanes[connection.server]
