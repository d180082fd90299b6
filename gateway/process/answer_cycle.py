"""One request and its answer on a connection: uvicorn's, with the answer's head written in one step.

uvicorn searches each name and each value of the answer's headers by itself, which takes longer than all else that the
connection does for an answer. Here all lines are checked at once, and a body that has come as a whole is handed over
without a wait.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.process.request_head import FIELDS

_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"connection"))


class AnswerCycle(RequestResponseCycle):
    """uvicorn's request-response cycle."""

    _is_read = False  # the body, to its end

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
        if self.disconnected or self.flow.write_paused:
            await super().send(message)
        elif not self.response_started:
            self._begin(message)
        elif self.chunked_encoding and not self.response_complete and message.get("more_body"):
            # A part of a stream.
            if (body := message.get("body")) and self.scope["method"] != "HEAD":
                self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        else:
            await super().send(message)

    def _begin(self, message: Any) -> None:
        """Write status line and headers."""
        if message["type"] != "http.response.start":
            raise RuntimeError(f"Expected ASGI message 'http.response.start', but got '{message['type']}'.")
        self.response_started, self.waiting_for_100_continue = True, False
        status, headers = message["status"], message.get("headers", ())
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
            self.chunked_encoding = True
            more += b"transfer-encoding: chunked\r\n"
        self.transport.write(b"%b%b%b\r\n" % (STATUS_LINE[status], head, more))

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
