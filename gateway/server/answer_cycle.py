"""One request and its answer on a connection: uvicorn's, and the request handler's client.

uvicorn searches each name and each value of the answer's headers by itself, which takes longer than all else that the
connection does for an answer. Here all lines are checked at once. The protocols' handlers are given the cycle itself
(`gateway.http.client`): a body that has come as a whole is taken without a wait, a whole answer is one write, and who
leaves is reported without a task or a future that waits for it. ASGI stays for Litestar's own paths.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.server.request_head import FIELDS

if TYPE_CHECKING:
    from gateway.http.accounting import RequestAccount

_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"connection"))


class AnswerCycle(RequestResponseCycle):
    """uvicorn's request-response cycle, which is a `gateway.http.client.Client`."""

    headers: Mapping[str, str] | None = None
    account: RequestAccount | None = None
    flow: Any  # has `gateway.http.client.Flow`, too
    _is_read = False  # the body, to its end
    _ends_body = False  # whether the connection's end is the answer's
    _leave: Callable[[], object] | None = None

    def take_body(self) -> bytes | None:
        """The body if it has come as a whole, and its client waits for no word before it sends one."""
        if self.more_body or self.waiting_for_100_continue or self._is_read or self.disconnected:
            return None
        self._is_read = True
        if self.flow.read_paused:
            self.flow.resume_reading()
        return bytes(self.body)

    def watch(self, leave: Callable[[], object]) -> None:
        """Call `leave` once the client has left."""
        self._leave = leave
        if self.disconnected:
            leave()

    def unwatch(self) -> None:
        """Call nothing any more."""
        self._leave = None

    def lose_client(self) -> None:
        """Learn that nothing is to be written any more."""
        self.disconnected = True
        self.message_event.set()
        if self._leave is not None:
            self._leave()

    async def answer(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole answer, whose headers have its length."""
        if self.flow.write_paused:  # by the answer before it
            await self.flow.drain()
        if self.disconnected:
            return
        head = self._begin(status, headers)
        if self.scope["method"] != "HEAD":
            head += body
        self.transport.write(head)
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    async def write(self, data: bytes) -> None:
        """Write a part of a stream."""
        if (write := self.at_once) is None:
            await self.send({"type": "http.response.body", "body": data, "more_body": True})
        else:
            write(data)

    @property
    def at_once(self) -> Callable[[bytes], object] | None:
        """What writes a part of a stream, if nothing is in its way."""
        if self.flow.write_paused or self.disconnected or self.scope["method"] == "HEAD":
            return None
        if self._ends_body:
            write: Callable[[bytes], object] = self.transport.write
            return write
        return self._write_chunk if self.chunked_encoding else None

    def _write_chunk(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def receive(self) -> Any:
        """ASGI's `receive`."""
        if not self._is_read and (self.more_body or self.waiting_for_100_continue):
            message = await super().receive()
            self._is_read = not message.get("more_body", False)
            return message
        # Most bodies are here as a whole: nothing is to be waited for but the end.
        if self.flow.read_paused:
            self.flow.resume_reading()
        if not self._is_read and not self.disconnected and not self.response_complete:
            self._is_read = True
            self.message_event.clear()
            return {"type": "http.request", "body": bytes(self.body), "more_body": False}
        while not self.disconnected and not self.response_complete:
            await self.message_event.wait()
            self.message_event.clear()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """ASGI's `send`."""
        if self._ends_body and message["type"] == "http.response.body":
            self.expected_content_length = len(message.get("body", b""))  # of what is left, uvicorn compares it
        if self.disconnected or self.flow.write_paused or self.response_started:
            await super().send(message)
        elif message["type"] != "http.response.start":
            raise RuntimeError(f"Expected ASGI message 'http.response.start', but got '{message['type']}'.")
        else:
            self.transport.write(self._begin(message["status"], message.get("headers", ())))

    async def run_asgi(self, app: Any) -> None:
        """Run the request; an answer that is cut off is never one with an end."""
        await super().run_asgi(app)
        if self._ends_body and not self.response_complete and not self.disconnected:
            # Without chunks, only a reset tells the client.
            if (connection := self.transport.get_extra_info("socket")) is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

    def _begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Status line and headers."""
        self.response_started, self.waiting_for_100_continue = True, False
        lines: list[bytes] = []
        closes = False
        for given, value in (*self.default_headers, *headers):
            name = given.lower()
            lines.append(b"%b: %b\r\n" % (name, value))
            if name in _FRAMING:
                closes = self._frame(name, value) or closes
        head = b"".join(lines)
        # One line for each header: a value with a line break would be two.
        if not FIELDS.fullmatch(head) or head.count(b"\n") != len(lines):
            raise RuntimeError("Invalid HTTP header.")
        more = b"" if self.keep_alive or closes else b"connection: close\r\n"
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            # RFC 9112, section 7.1: the length is not known.
            if self.scope["http_version"] == "1.0":
                # Section 6.1: such a client knows no transfer codings. Nor is its connection kept.
                self.chunked_encoding, self._ends_body = False, True
            else:
                self.chunked_encoding = True
                more += b"transfer-encoding: chunked\r\n"
        return b"%b%b%b\r\n" % (STATUS_LINE[status], head, more)

    def _frame(self, name: bytes, value: bytes) -> bool:
        """Note what a header says of the end of the body, or of the connection; returns whether that is closed."""
        if name == b"content-length" and self.chunked_encoding is None:
            self.expected_content_length, self.chunked_encoding = int(value), False
        elif name == b"transfer-encoding" and value.lower() == b"chunked":
            self.expected_content_length, self.chunked_encoding = 0, True
        elif name == b"connection" and b"close" in [token.strip() for token in value.lower().split(b",")]:
            self.keep_alive = False
            return True
        return False
