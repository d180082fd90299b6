"""uvicorn's HTTP protocol, guarded: one request at a time, none that is not plainly correct, and none without end.

Strategy: every byte passes `data_received`. The head of a request is collected and checked as a whole
(`gateway.process.request_head`), then the parser gets it and exactly the bytes of its body; what follows waits until
the answer is complete. So at most one request of a connection is in memory, and a check never sees half a head.

Time limits cost a request nothing: each connection notes when it began to wait, and one sweep over all connections
(`gateway.process.connections`) ends those that wait too long.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.config import Limits
from gateway.http.answering import FLOW_EXTENSION
from gateway.http.entrance import CERTIFICATE_EXTENSION
from gateway.process.answer_cycle import AnswerCycle
from gateway.process.client_transport import ClientTransport
from gateway.process.request_head import END, Framing, RefusedHead, check_head, check_part, without_trailing_space

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
        arguments: uvicorn's.
    """

    transport: ClientTransport  # type: ignore[assignment]
    flow: _ReadGate

    def __init__(self, limits: Limits, on_refused: Any, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._limits = limits
        self._on_refused = on_refused
        self._input = b""  # what has come and the parser has not got
        self._left: int | Framing | None = None  # of the body that is being read; None between messages
        # For a head to begin or to be complete, the rest of a body, or an answer with too many requests behind it.
        self._waits_since = self.loop.time()
        self._requests = 0
        self._gives_up = False  # later requests
        self._tail = b""  # the last bytes of a chunked body that the parser got
        self._between_data = 0
        self._crowded = False
        self._certificate: dict[str, Any] | None = None  # with TLS; {}: the client has none

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Wrap the transport."""
        transport.set_write_buffer_limits(high=_MOST_UNSENT)
        wrapped = ClientTransport(transport, self.loop, self._has_unread, self._read_again)
        super().connection_made(cast(asyncio.Transport, wrapped))
        self.flow = _ReadGate(cast(asyncio.Transport, self.transport))
        if self.scheme == "https":
            self._certificate = transport.get_extra_info("peercert") or {}
        excess = len(self.connections) - self._limits.max_connections
        # Over the limit, a few more are accepted, for health checks: a load balancer must not take a full server for a
        # dead one.
        self._crowded = excess > 0
        if excess > max(8, self._limits.max_connections // 16):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was to be read."""
        self._input, self._left = b"", None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes off the wire."""
        if self._gives_up or self.transport.lingering_since is not None:
            self.transport.drop(len(data))
            return
        if not self._input and self._left is None:
            self._waits_since = self.loop.time()  # the first byte of a head
        self._input = self._input + data if self._input else data
        self._parse()

    def on_headers_complete(self) -> None:
        """Begin the request."""
        if not self.url.startswith(b"/"):
            self.url = _origin_form(self.url)
        self.transport.begin_answer()
        scope = cast(dict[str, Any], self.scope)
        scope["extensions"] = {FLOW_EXTENSION: {"flow": self.flow}}
        if self._certificate is not None:
            scope["extensions"][CERTIFICATE_EXTENSION] = self._certificate
        # Instead of uvicorn's, which parses the target once more: `check_head` has.
        raw_path, _, scope["query_string"] = self.url.partition(b"?")
        path = raw_path.decode("ascii")
        scope["path"], scope["raw_path"] = unquote(path) if "%" in path else path, raw_path
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version = self.parser.get_http_version()
        self.cycle = AnswerCycle(
            scope=self.scope,
            transport=self.transport,  # type: ignore[arg-type]  # as uvicorn's own
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)  # the request before has its answer (`_parse`)
        # The request has the list of its headers by now; trailers go to another one, which nobody reads.
        self.headers = []
        self._requests += 1
        if self._requests >= self._limits.max_requests_per_connection:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body."""
        self._between_data = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request's body."""
        self._left = None
        if self._requests >= self._limits.max_requests_per_connection:
            self._gives_up = True
        super().on_message_complete()

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
        elif self._input:
            if waits > self._limits.header_timeout:
                self._refuse(408, "The request's head did not arrive in time.")
        elif waits > (self._limits.header_timeout if self.cycle is None else self.timeout_keep_alive):
            transport.close()

    def _end_if_stalled(self, now: float) -> None:
        if self.transport.stalled(now) > self._limits.write_stall:
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
        self._gives_up, self.cycle.keep_alive = True, False
        self.flow.hold(False)
        self._parse()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _has_unread(self) -> bool:
        return self._left is not None or bool(self._input) or self._gives_up

    def _read_again(self) -> None:
        self.flow.hold(False)
        self.flow.resume_reading()

    def _parse(self) -> None:
        """Give the parser what it may have of the input."""
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
            if self._left is Framing.CHUNKED:
                self._feed_chunks()
                return
            piece = self._head() if self._left is None else self._body()
            if not piece:
                return
            self._feed(piece)

    def _head(self) -> bytes:
        """Take a checked head, and of its body what is there, off the input; b"" if the head is not complete."""
        # RFC 9112, section 2.2: an empty line before the request line is ignored.
        if self._input.startswith(b"\r\n"):
            self._input = self._input[2:]
        end = self._input.find(END) + len(END)
        try:
            if end < len(END):
                check_part(self._input, self._limits)
                return b""
            head = self._input[:end]
            self._left = framing = check_head(head, self._limits)
        except RefusedHead as refused:
            self._refuse(refused.status, refused.reason)
            return b""
        if self._crowded and head.split(b" ", 2)[1] not in _ALWAYS_ANSWERED:
            self._refuse(503, "The server has too many connections.")
            return b""
        clean = without_trailing_space(head)
        if clean is not head:
            self._input = clean + self._input[end:]
            head, end = clean, len(clean)
        self._tail, self._between_data = b"", 0
        if framing is Framing.CHUNKED:
            self._input = self._input[end:]
            return head
        assert isinstance(framing, int)
        # The usual case: the whole request, with nothing behind it, goes to the parser as it came.
        self._left = max(0, framing - (len(self._input) - end))
        return self._take(end + framing)

    def _body(self) -> bytes:
        left = self._left
        assert isinstance(left, int)
        self._left = max(0, left - len(self._input))
        return self._take(left)

    def _take(self, size: int) -> bytes:
        taken, self._input = self._input[:size], self._input[size:]
        return taken

    def _feed_chunks(self) -> None:
        """Feed a step of a chunked body, and the rest in later turns of the event loop.

        The parser would go on with the next request behind the body's end. The end is an empty line, so the body is fed
        from one empty line to the next.
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
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # RFC 9110, section 7.8: a server may ignore Upgrade, and answer in the protocol of the request
        except httptools.HttpParserError:
            self._refuse(400, "The request is not correct HTTP/1.1.")

    def _refuse(self, status: int, reason: str) -> None:
        """Answer what the application does not see, and close."""
        request_id = self._on_refused(str(status))
        cycle = self.cycle
        if self._is_answering():
            # The body of a request that is being read turned out to be wrong: its handler learns that the client is
            # gone, and nothing more is written for it.
            answered, cycle.disconnected = cycle.response_started, True
            cycle.message_event.set()
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
        self._input, self._left = b"", None
        self.transport.linger()


class _ReadGate(FlowControl):
    """Flow control whose reading stays paused while it is held: uvicorn resumes it whenever a request is read.

    Attributes:
        held: whether it is.
        gathers: as of `gateway.http.answering.Flow`.
    """

    gathers = False

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.held = False
        self._paused = False  # by uvicorn

    def hold(self, held: bool) -> None:
        """Pause reading until it is held no more, or let it go on if uvicorn wants it."""
        self.held = held
        if held:
            super().pause_reading()
        elif not self._paused:
            super().resume_reading()

    def pause_reading(self) -> None:
        """Pause."""
        self._paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """Resume unless held."""
        self._paused = False
        if not self.held:
            super().resume_reading()


def _origin_form(target: bytes) -> bytes:
    """The path and query of an absolute target (RFC 9112, section 3.2.2); the asterisk as a path that nobody has."""
    if target == b"*":
        return b"/*"
    rest = target.partition(b"://")[2]
    path = rest[len(rest.partition(b"/")[0].partition(b"?")[0]) :]
    return path if path.startswith(b"/") else b"/" + path
