"""What has come of a response: head, body and how they ended. httptools' parser calls it (sections are RFC 9112's)."""

from __future__ import annotations

from collections import deque

import httptools

from backends.transport.limits import TransportLimits
from schemas.errors import BackendFailed, Fault, GatewayError


class ReceivedResponse:
    """The response that a connection reads at present.

    Args:
        limits: bounds on what is read.

    Attributes:
        status, headers: those of the response; 0 and none before they have come.
        head_complete: whether they have.
        pieces: all of the body that has arrived and was not read: as the server has sent it, if it has chunked the
            body, or as it came.
    """

    __slots__ = (
        "_at_chunk",
        "_buffered",
        "_complete",
        "_failure",
        "_head_size",
        "_interim",
        "_limits",
        "_parser",
        "_received",
        "_reusable",
        "_unsolicited",
        "head_complete",
        "headers",
        "pieces",
        "status",
    )

    def __init__(self, limits: TransportLimits) -> None:
        self._limits = limits
        # One parser reads all responses of the connection, so it also sees bytes that come after a complete response.
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    # The parser outlives an exchange.
    def _reset(self) -> None:
        """Forget the last response."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: deque[bytes] = deque()
        self._buffered = 0
        self._received = self._head_size = 0  # bytes from the socket; bytes of headers
        # `_complete`: the body has ended. `_unsolicited`: bytes came that answer no request.
        self.head_complete = self._complete = self._interim = self._unsolicited = self._reusable = False
        self._at_chunk = False  # whether the next byte begins one
        self._failure: GatewayError | None = None

    def peek(self) -> bytes:
        """The pieces as one."""
        # Fast path: a stream mostly has one chunk per wake-up, which is handed on without a copy.
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)

    def abort(self) -> None:
        """Read nothing more."""
        raise NotImplementedError

    # --- httptools' callbacks ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Refuse a second response to one request: it must not be taken for the answer to the next one (9.2)."""
        if self._complete:
            self._unsolicited = True
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        if self._unsolicited:
            return
        # Trailers (7.1.2) come here as well and count towards the bound.
        self.headers.append((name.lower(), value))
        self._head_size += len(name) + len(value) + 4  # colon, space, CR and LF
        if self._head_size > self._limits.head:
            self._fail("too many headers")

    def on_headers_complete(self) -> None:
        """Note the end of a head. Interim responses (1xx) are skipped: the final one follows."""
        # The parser goes on to the end of the packet after `abort` or a failure; what it reports then is ignored.
        if self._unsolicited or self._failure is not None:
            return
        self.status = self._parser.get_status_code()
        self._interim = 100 <= self.status < 200
        if self._interim:
            # The final response must not inherit headers of the interim one.
            self.headers = []
        else:
            self.head_complete = True

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body, without the framing of chunks."""
        if not self._unsolicited:
            self.pieces.append(body)
            self._buffered += len(body)

    def on_chunk_header(self) -> None:
        """Note the line before a chunk."""
        self._at_chunk = False

    def on_chunk_complete(self) -> None:
        """Note the end of a chunk."""
        self._at_chunk = True

    def on_message_complete(self) -> None:
        """Note the end of a response, and whether the upstream keeps the connection open."""
        # Interim responses complete as messages, too, but do not end the exchange.
        if not self._interim:
            self._complete = True
            self._reusable = self._parser.should_keep_alive() and not self._unsolicited

    # --- internals --------------------------------------------------------------------------------------------------

    def _has_framing(self) -> bool:
        # Without either header the body is delimited by the close of the connection (6.3, item 8).
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _fail(self, why: str) -> None:
        if self._failure is None:
            message = f"The backend's answer could not be read: {why}."
            self._failure = BackendFailed(message, fault=Fault.MALFORMED)
        self.abort()
