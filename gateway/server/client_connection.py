"""uvicorn's HTTP protocol, guarded: one request at a time, none that is not plainly correct, and none without end.

Strategy: every byte passes `data_received`. The head of a request is collected and read as a whole
(`gateway.server.request_head`), then exactly the bytes of its body are passed on, those of a chunked one through a
parser; what follows waits until the answer is complete. So at most one request of a connection is in memory, and nobody
ever sees half a head.

Time limits cost a request nothing: each connection notes when it began to wait, and one sweep over all connections
(`gateway.server.connections`) ends those that wait too long.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.config import Limits
from gateway.http.accounting import RequestAccount
from gateway.http.direct.request import Wrap
from gateway.http.entrance import Entrance
from gateway.server.admission import Admission
from gateway.server.answer_cycle import AnswerCycle
from gateway.server.chunked_body import chunked_parser
from gateway.server.client_transport import ClientTransport
from gateway.server.direct_way import DirectWay
from gateway.server.read_gate import ReadGate
from gateway.server.request_head import END, Framing, Head, HeadReader, RefusedHead, check_part
from gateway.server.scope import scope_of

_MOST_AHEAD = 64 * 1024
"""Bytes of later requests that are kept before reading stops."""
_LONGEST_AHEAD = 1.0
"""Seconds for which reading stops at most while a request is answered. The end of the connection may lie behind more
bytes than the kernel takes: then the later requests are given up, and what comes is dropped until the answer ends."""
_CHUNKED_STEP = 32 * 1024
"""Bytes of a chunked body that are parsed in one turn of the event loop: each of its chunks may have one byte."""
_MOST_BETWEEN_DATA = 16 * 1024
"""Bytes of chunk extensions or trailers that may come without data."""
_MOST_UNSENT = 16 * 1024
"""Bytes of an answer that may wait for the kernel to take them, before the backend is read on; asyncio's default is
64 KiB. The kernel's own buffer keeps a client supplied: these bytes only cost memory where a client reads slowly."""
LINGER = 2.0
"""Seconds for which a connection lingers, and for which the rest of a body may come that nobody asked for."""
_ALWAYS_ANSWERED = (b"/health", b"/health/ready", b"/ping")


class ClientConnection(HttpToolsProtocol):
    """One client connection.

    Args:
        limits: of requests and connections.
        on_refused: called with the status of a request that the application does not see; returns its request id.
        heads: reads the heads of requests.
        admission: to a turn of the event loop.
        entrance: asked first, without ASGI, what answers a request; None: the application is called.
        arguments: uvicorn's.

    Attributes:
        certificate: the client's, with TLS; {}: it has none; None: without TLS.
        requests: how many the client has sent.
    """

    transport: ClientTransport  # type: ignore[assignment]
    flow: ReadGate
    cycle: AnswerCycle

    def __init__(
        self,
        limits: Limits,
        on_refused: Any,
        heads: HeadReader,
        admission: Admission,
        entrance: Entrance | None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.parser = None  # uvicorn's, which would read heads once more
        self._limits = limits
        self._on_refused = on_refused
        self._heads = heads
        self._admission = admission
        self._entrance = entrance
        self._input = b""  # what has come and was not passed on
        self._left: int | Framing | None = None  # of the body that is being read; None between messages
        # For a head to begin or to be complete, the rest of a body, or an answer with too many requests behind it.
        self._waits_since = self.loop.time()
        self.requests = 0
        self._gives_up = False  # later requests
        self._chunked: httptools.HttpRequestParser | None = None  # of the body that is being read
        self._tail = b""  # the last bytes of a chunked body that the parser got
        self._between_data = 0
        self._crowded = False
        self._direct = DirectWay(self, entrance)
        self._waits_for_turn = False  # to be admitted to one
        self._held = False  # whether a whole head is still in the input, until something of its body comes
        self.certificate: dict[str, Any] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Wrap the transport."""
        transport.set_write_buffer_limits(high=_MOST_UNSENT)
        wrapped = ClientTransport(transport, self.loop, self._has_unread, self._read_again)
        super().connection_made(cast(asyncio.Transport, wrapped))
        self.flow = ReadGate(cast(asyncio.Transport, self.transport))
        if self.scheme == "https":
            self.certificate = transport.get_extra_info("peercert") or {}
        excess = len(self.connections) - self._limits.max_connections
        # Over the limit, a few more are accepted, for health checks: a load balancer must not take a full server for a
        # dead one.
        self._crowded = excess > 0
        if excess > max(8, self._limits.max_connections // 16):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was to be read."""
        if self._held:
            self._head()
        self._input, self._left, self._chunked = b"", None, None
        super().connection_lost(exc)
        if self._direct.body is not None and not self._direct.lose_client():
            self._direct.go_on()
            # When its task waits for the answer, as if it had done so all the time.
            self.loop.call_soon(self.cycle.lose_client)
        elif self._is_answering():
            self.cycle.lose_client()

    def data_received(self, data: bytes) -> None:
        """Take bytes off the wire."""
        if self._gives_up or self.transport.lingering_since is not None:
            self.transport.drop(len(data))
            return
        if not self._input and self._left is None:
            self._waits_since = self.loop.time()  # the first byte of a head
        self._input = self._input + data if self._input else data
        if not self._waits_for_turn:
            self._waits_for_turn = self._left is None and not self._admission.admit(self._take_turn)
        if not self._waits_for_turn:
            self._parse()

    def shutdown(self) -> None:
        """End with the present answer, which a task goes on with if it has not begun."""
        if self._held or self._waits_for_turn:
            self._parse()
        if self._direct.shut_down():
            return
        if self._direct.body is not None:
            self._direct.go_on()
        super().shutdown()

    def pause_writing(self) -> None:
        """Learn that the client is slow."""
        super().pause_writing()
        self._direct.pause()

    def resume_writing(self) -> None:
        """Learn that it is not any more."""
        super().resume_writing()
        self._direct.resume()

    def begin(self, head: Head, begun: tuple[RequestAccount, Wrap] | None = None) -> None:
        """Begin a request in a task, or go on with one."""
        self.transport.taken_at = None
        self.expect_100_continue = head.expects_continue
        scope = scope_of(self, head)
        is_last = self.requests >= self._limits.max_requests_per_connection
        self.cycle = AnswerCycle(
            scope=scope,
            transport=self.transport,  # type: ignore[arg-type]  # as uvicorn's own
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=head.expects_continue,
            keep_alive=head.keeps_alive and not is_last,
            on_response=self.on_response_complete,
        )
        self.cycle.headers = head.text
        # The request before has its answer (`_parse`).
        self.cycle.account, wrap = begun or (None, None)
        work = None if self._entrance is None else self._entrance.ask(scope, self.cycle)
        if wrap is not None and work is not None:
            work = wrap(work)
        self._start_asgi_task(self.cycle, self.app if work is None else lambda *_: work)

    def pass_on(self, body: bytes, *, is_last: bool) -> None:
        """Pass on a piece of the request's body."""
        self._between_data = 0
        if is_last:
            self._left = self._chunked = None
            self._gives_up = self._gives_up or self.requests >= self._limits.max_requests_per_connection
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.more_body = not is_last
        cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Go on with what the client has sent meanwhile."""
        # Instead of uvicorn's, which sets a timer for each answer; the sweep looks at `_waits_since`.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._waits_since = self.loop.time()
        if self._left is not None and self.expect_100_continue:
            # The client may send the body that it has announced, or not: what comes next is not known.
            self.transport.close()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self._input:
            self._parse()

    def end_if_late(self, now: float) -> None:
        """Close the connection if it has passed one of its time limits.

        Args:
            now: on the event loop's clock.
        """
        transport, waits = self.transport, now - self._waits_since
        if transport.lingering_since is not None and not transport.get_write_buffer_size():
            if now - transport.lingering_since > LINGER:
                transport.abort()
        elif transport.is_closing() or self._is_answering():
            self._end_if_stalled(now)
        elif self._left is not None:  # the rest of a body whose request has been answered
            if waits > LINGER:
                transport.close()
        elif self._held:
            self._parse()
        elif self._input:
            if waits > self._limits.header_timeout:
                self._refuse(408, "The request's head did not arrive in time.")
        elif waits > (self._limits.header_timeout if not self.requests else self.timeout_keep_alive):
            transport.close()

    def _end_if_stalled(self, now: float) -> None:
        if self.transport.has_stalled(now, self._limits.write_stall):
            self._on_refused("write_stall")
            self.transport.abort()
        elif self.flow.held and self._left is None:
            # While nothing is read, nothing else tells that the client has left.
            if self.transport.has_hung_up():
                self.transport.abort()
            elif now - self._waits_since > _LONGEST_AHEAD:
                self._give_up_later_requests()

    def _give_up_later_requests(self) -> None:
        """End the connection with the present answer, and read on until then, to learn whether the client leaves."""
        self._on_refused("pipelining")
        if not self._direct.close_after():
            if self._direct.body is not None:
                self._direct.go_on()
            self.cycle.keep_alive = False
        self._gives_up = True
        self.flow.hold(False)
        self._parse()

    def _is_answering(self) -> bool:
        return self._direct.body is not None or (self.cycle is not None and not self.cycle.response_complete)

    def _has_unread(self) -> bool:
        return self._left is not None or bool(self._input) or self._gives_up

    def _read_again(self) -> None:
        self.flow.hold(False)
        self.flow.resume_reading()

    def _take_turn(self) -> None:
        """Read what has come while the connection waited to be admitted."""
        self._waits_for_turn = False
        self._parse()

    def _parse(self) -> None:
        """Read as much of the input as may be read."""
        while self._input and not self.transport.is_closing():
            if self._gives_up:
                # Behind the last request. RFC 9112, section 9.3.2: the client repeats what got no answer.
                self._input = b""
                return
            if self._left is None and self._is_answering():
                # The next request. It waits here as bytes, and if there are many, in the client's own buffers.
                if len(self._input) > _MOST_AHEAD and not self.flow.held:
                    self._waits_since = self.loop.time()
                self.flow.hold(len(self._input) > _MOST_AHEAD)
                return
            if self._left is None and not self._head():
                return
            if self._left is Framing.CHUNKED:
                self._feed_chunks()
                return
            if self._left is not None and self._input:
                self._body(self._left)

    def _head(self) -> bool:
        """Take a head off the input, and begin its request; False if it is not complete, or not taken."""
        # RFC 9112, section 2.2: an empty line before the request line is ignored.
        if self._input.startswith(b"\r\n"):
            self._input = self._input[2:]
        end = self._input.find(END) + len(END)
        try:
            if end < len(END):
                check_part(self._input, self._limits)
                return False
            head = self._heads.read(self._input[:end])
        except RefusedHead as refused:
            self._refuse(refused.status, refused.reason)
            return False
        if self._crowded and head.target not in _ALWAYS_ANSWERED:
            self._refuse(503, "The server has too many connections.")
            return False
        if not self._held and len(self._input) == end and head.framing and self._direct.takes(head):
            # Most clients send the body in a packet of its own, which follows at once.
            self._held = True
            return False
        self._held = False
        self.requests += 1
        if head.lanes is not None and len(self._input) - end == head.framing:
            body, self._input = self._input[end:], b""
            if self.requests < self._limits.max_requests_per_connection and self._direct.begin(head, body):
                return True
            self._input = body
        else:
            self._input = self._input[end:]
        self.begin(head)
        self._left = head.framing
        if head.framing is Framing.CHUNKED:
            self._tail, self._chunked = b"", chunked_parser(self.pass_on)
        elif not head.framing:
            self.pass_on(b"", is_last=True)
        return True

    def _body(self, left: int) -> None:
        """Pass on what is there of a body of which so many bytes are left."""
        piece, self._input = self._input[:left], self._input[left:]
        self._left = left = left - len(piece)
        self.pass_on(piece, is_last=not left)

    def _feed_chunks(self) -> None:
        """Feed a step of a chunked body, and the rest in later turns of the event loop.

        The parser would go on behind the body's end. The end is an empty line, so the body is fed from one empty line
        to the next.
        """
        # An empty line may begin in what was fed before.
        window, rest, at = self._tail + self._input[:_CHUNKED_STEP], self._input[_CHUNKED_STEP:], len(self._tail)
        while at < len(window) and self._left is not None and not self.transport.is_closing():
            found = window.find(END, max(0, at - len(END) + 1))
            end = found + len(END) if found >= 0 else len(window)
            self._between_data += end - at
            self._feed(window[at:end])
            at = end
        if self.transport.is_closing():
            return
        self._tail = window[max(0, at - len(END) + 1) : at]
        self._input = window[at:] + rest
        if self._between_data > _MOST_BETWEEN_DATA + _CHUNKED_STEP:
            self._refuse(431, "The body's chunk extensions or trailers are too large.")
        elif self._input and self._left is None:
            self._parse()
        else:
            self.flow.hold(bool(self._input))
            if self._input:
                self.loop.call_soon(self._parse)

    def _feed(self, data: bytes) -> None:
        assert self._chunked is not None
        try:
            self._chunked.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(400, "The request is not correct HTTP/1.1.")

    def _refuse(self, status: int, reason: str) -> None:
        """Answer what the application does not see, and close."""
        request_id = self._on_refused(str(status))
        cycle = self.cycle
        if self._is_answering():
            # The body of a request that is being read turned out to be wrong: its handler learns that the client is
            # gone, and nothing more is written for it.
            answered = cycle.response_started
            cycle.lose_client()
        else:
            answered = False
        if not answered:
            text = reason.encode()
            fields = [*self.server_state.default_headers, (b"content-type", b"text/plain; charset=utf-8")]
            fields += [(b"content-length", b"%d" % len(text)), (b"x-request-id", request_id.encode())]
            fields += [(b"retry-after", b"1")] if status == 503 else []
            lines = [b"%b: %b\r\n" % field for field in fields if field[0] != b"connection"]
            self.transport.write(b"".join((STATUS_LINE[status], *lines, b"connection: close\r\n\r\n", text)))
        # Whatever has come or will come is not read as a request.
        self._input, self._left, self._chunked = b"", None, None
        self.transport.linger()
