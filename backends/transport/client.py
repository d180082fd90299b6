"""The client of one upstream: sends an `Outbound`, returns a status, headers and the body as it arrives.

Error statuses are ordinary replies here. Raised are the transport's own failures: not reached, too late, cut off,
unreadable. Deadlines are points of the event loop's clock instead of durations, so that one deadline can bound several
calls.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, urlsplit

from adapters.base import Headers, Outbound, Reply
from backends.transport.connection import Connection
from backends.transport.limits import TransportLimits
from backends.transport.pool import Pool
from schemas.errors import BackendFailed, BackendUnavailable, Fault

# Neither a path nor a header value may hold CR or LF, or it could add a header or a request (CWE-93; RFC 9110, 5.5).
# Both patterns are narrower than the RFC's: visible ASCII, and in headers also space and tab.
_TARGET = re.compile(r"[!-~]+")
_HEADER = re.compile(r"[\t -~]*")
_CACHED_HEADS = 256  # serialized request heads: an upstream gets few different paths and headers


def split_url(url: str) -> SplitResult:
    """The parts of an upstream's base URL.

    Raises:
        ValueError: it is not an http or https URL, has no host, or has a query or credentials.
    """
    parts = urlsplit(url)
    # A query cannot be prefixed to paths. Credentials in URLs end up in logs, and keys have an option of their own.
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ValueError("not an http or https URL of a host, without user and query")
    return parts


class Response:
    """An answer whose head has arrived. End it with `finish` or `close`; the connection is lent until then."""

    __slots__ = ("_connection", "_ended", "_first", "_limits", "headers", "media_type", "status")

    def __init__(self, connection: Connection, limits: TransportLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._ended = False
        self.status = connection.status
        # latin-1 maps every byte, so a header in any encoding is decoded without an error.
        self.headers: Headers = tuple(
            [(name.decode("latin-1"), value.decode("latin-1")) for name, value in connection.headers]
        )
        # The later key wins in a `dict`, hence the reversal.
        self._first = dict(reversed(self.headers))  # of a repeated header, the first value wins
        self.media_type = self.header("content-type").partition(";")[0].strip().lower()

    def header(self, name: str) -> str:
        """The first value of a header, by its lower-case name; "" without one."""
        return self._first.get(name, "")

    def read(self, deadline: float | None) -> Coroutine[Any, Any, bytes]:
        """All of the body that has arrived, at least a byte; empty at its end.

        Raises:
            schemas.errors.BackendError: the rest will not arrive, or no byte of it by `deadline`.
        """
        return self._connection.read(deadline)  # not awaited here: one coroutine less for every chunk

    async def reply(self, deadline: float | None) -> Reply:
        """Read the whole answer. The caller still ends it.

        Raises:
            schemas.errors.BackendError: as for `read`, or the body is larger than the limit.
        """
        parts: list[bytes] = []
        size = 0
        # The deadline is a point in time, so it bounds the sum of all reads.
        while data := await self._connection.read(deadline):
            parts.append(data)
            size += len(data)
            # Counted while reading: `content-length` may be absent or wrong.
            if size > self._limits.body:
                raise BackendFailed("The backend's answer is too large.", fault=Fault.TOO_BIG)
        return Reply(b"".join(parts), self.status, self.media_type, self.headers)

    def finish(self) -> None:
        """End a complete answer; its connection may be reused. Idempotent."""
        if not self._ended:
            self._ended = True
            self._connection.finish()

    def close(self) -> None:
        """End the answer; unless it is complete, close its connection, which tells the upstream to stop. Idempotent."""
        if not self._ended:
            self._ended = True
            # Where no end of the body is known, release aborts the socket; HTTP/1.1 has no other way to cancel a
            # response.
            self._connection.release()


class Transport:
    """The client of one upstream.

    Args:
        url: the base URL, to which the paths of requests are appended.
        headers: sent with every request. They may hold a key: no error text repeats them.
        limits: bounds on connections.
        connect_timeout: seconds to open a connection, TLS included.
        tls: for `https`; by default with the system's certificates.

    Raises:
        ValueError: `url` or a header cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Headers = (),
        limits: TransportLimits | None = None,
        connect_timeout: float = 2.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = split_url(url)
        assert parts.hostname is not None
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/")  # paths of requests begin with a slash
        self._limits = limits or TransportLimits()
        self._connect_timeout = connect_timeout
        # No compression: servers that compress a stream hold events back until a block is full.
        # `netloc` keeps a port that is not the default: Host must have it (RFC 9110, 7.2).
        fixed = (("host", parts.netloc), ("accept-encoding", "identity"), ("user-agent", "interlingua"), *headers)
        self._fixed = _header_lines(fixed)
        # A cache per transport, as an attribute: `@lru_cache` on the method would share it and keep every transport
        # alive.
        self._head = lru_cache(_CACHED_HEADS)(self._serialize_head)
        self.pool = Pool(self._connect, self._limits)

    def exchange(self, request: Outbound, deadline: float | None = None) -> Coroutine[Any, Any, Response]:
        """Send a request and return once the head of its answer has arrived.

        Raises:
            schemas.errors.GatewayError: there is no answer, none by `deadline`, or one with a content encoding.
        """
        # Serialized at the call: a path or header that cannot be sent fails before a connection is borrowed.
        return self._send(self._serialize(request), deadline)

    async def _send(self, data: bytes, deadline: float | None) -> Response:
        connection = await self.pool.acquire(deadline)
        try:
            connection.send(data)
            try:
                await connection.receive_head(deadline)
            except BackendUnavailable:
                # Not the race: the upstream failed on a new connection, or in the middle of the head. The caller
                # decides.
                if not connection.stale:
                    raise
                # The keep-alive race. The replacement may be fresh or idle; if that fails as well, it is an error.
                # The dead connection needs no release: `connection_lost` has freed its slot.
                self.pool.close_idle()
                connection = await self.pool.acquire(deadline)
                connection.send(data)
                await connection.receive_head(deadline)
            response = Response(connection, self._limits)
            # The request forbids encodings; decoding one anyway would need buffering and a bound on the expanded size.
            if response.header("content-encoding") not in ("", "identity"):
                raise BackendFailed("The backend's answer has a content encoding.", fault=Fault.MALFORMED)
        except BaseException:  # cancellation included: what the socket would deliver next belongs to nobody
            connection.abort()
            raise
        return response

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self.pool.aclose()

    def _serialize(self, request: Outbound) -> bytes:
        base = self._base.removesuffix("/v1") if request.beside_v1 else self._base
        head = self._head(request.method, base + request.path, request.headers)
        if request.method == "GET":  # no body, hence no content-length (RFC 9110, 8.6)
            return head + b"\r\n"
        # Head and body in one buffer: one write, and one packet for a small request.
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(request.body), request.body)

    def _serialize_head(self, method: str, target: str, headers: Headers) -> bytes:
        if _TARGET.fullmatch(target) is None:
            raise BackendFailed("The request's path cannot be sent.")
        return f"{method} {target} HTTP/1.1\r\n".encode() + self._fixed + _header_lines(headers)

    async def _connect(self, make: Callable[[], Connection]) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                await asyncio.get_running_loop().create_connection(make, self._host, self._port, ssl=self._tls)
        # Before `OSError`, of which `TimeoutError` is a subclass.
        except TimeoutError:
            raise BackendUnavailable("The backend could not be reached in time.", fault=Fault.CONNECT) from None
        except (OSError, UnicodeError):  # refused, no such host, TLS. Details hold addresses, which are not for clients
            raise BackendUnavailable("The backend could not be reached.", fault=Fault.CONNECT) from None


def _header_lines(headers: Headers) -> bytes:
    if not all(_HEADER.fullmatch(name) and _HEADER.fullmatch(value) for name, value in headers):
        # The text repeats neither name nor value: the value may be a key.
        raise ValueError("a header holds characters that cannot be sent")
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode()
