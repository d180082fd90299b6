"""Exchanges with one upstream: an `Outbound` goes out, a status, headers and chunks come back.

The upstream's own errors are replies here, whatever their status; what is raised is the transport's: not reached, too
late, cut, unreadable. All deadlines are points of the event loop's clock, so that the caller decides what they bound.
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

_TARGET = re.compile(r"[!-~]+")
_HEADER = re.compile(r"[\t -~]*")
_HEADS = 256  # of requests, kept written: an upstream is asked for few paths with few headers


def split_url(url: str) -> SplitResult:
    """The parts of a base URL.

    Raises:
        ValueError: it is none that can be called.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ValueError("not an http or https URL of a host, without user and query")
    return parts


class Response:
    """An answer whose head is there. `finish` or `close` it."""

    __slots__ = ("_connection", "_ended", "_first", "_limits", "headers", "media_type", "status")

    def __init__(self, connection: Connection, limits: TransportLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._ended = False
        self.status = connection.status
        self.headers: Headers = tuple(
            [(name.decode("latin-1"), value.decode("latin-1")) for name, value in connection.headers]
        )
        self._first = dict(reversed(self.headers))
        self.media_type = self.header("content-type").partition(";")[0].strip().lower()

    def header(self, name: str) -> str:
        """A header's first value, or nothing."""
        return self._first.get(name, "")

    def read(self, deadline: float | None) -> Coroutine[Any, Any, bytes]:
        """All of the body that has arrived, at least a byte; empty at its end.

        Raises:
            schemas.errors.BackendError: the rest will not come, or not by `deadline`.
        """
        return self._connection.read(deadline)

    async def reply(self, deadline: float | None) -> Reply:
        """The whole answer.

        Raises:
            schemas.errors.BackendError: as `read`, or it is too large.
        """
        parts: list[bytes] = []
        size = 0
        while data := await self._connection.read(deadline):
            parts.append(data)
            size += len(data)
            if size > self._limits.body:
                raise BackendFailed("The backend's answer is too large.", fault=Fault.TOO_BIG)
        return Reply(b"".join(parts), self.status, self.media_type, self.headers)

    def finish(self) -> None:
        """Nothing more is wanted, and the answer was whole: its connection may serve again."""
        if not self._ended:
            self._ended = True
            self._connection.finish()

    def close(self) -> None:
        """Nothing more is wanted: unless the answer is over, the upstream is made to stop. Idempotent."""
        if not self._ended:
            self._ended = True
            self._connection.release()


class Transport:
    """A client of one upstream.

    Args:
        url: its base; requests' paths are appended.
        headers: sent with every request; keys among them are told to nobody else.
        limits: what connections may cost.
        connect_timeout: seconds for a connection, TLS included.
        tls: for `https`; by default the system's certificates.

    Raises:
        ValueError: `url` or a header cannot be used; the text does not hold the header.
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
        self._base = parts.path.rstrip("/")
        self._limits = limits or TransportLimits()
        self._connect_timeout = connect_timeout
        fixed = (("host", parts.netloc), ("accept-encoding", "identity"), ("user-agent", "interlingua"), *headers)
        self._fixed = _lines(fixed)
        self._head = lru_cache(_HEADS)(self._written)
        self.pool = Pool(self._connect, self._limits)

    def exchange(self, request: Outbound, deadline: float | None = None) -> Coroutine[Any, Any, Response]:
        """Send a request, return once the answer's head is there.

        A connection that the upstream had closed before it could see the request is replaced, once.

        Raises:
            schemas.errors.GatewayError: there is no answer, none by `deadline`, or one in an encoding not asked for.
        """
        return self.send(self._write(request), deadline)

    async def send(self, data: bytes, deadline: float | None = None) -> Response:
        """The same for a request as bytes."""
        connection = await self.pool.acquire(deadline)
        try:
            connection.send(data)
            try:
                await connection.head(deadline)
            except BackendUnavailable:
                if not connection.stale:
                    raise
                self.pool.drop_free()
                connection = await self.pool.acquire(deadline)
                connection.send(data)
                await connection.head(deadline)
            response = Response(connection, self._limits)
            if response.header("content-encoding") not in ("", "identity"):
                raise BackendFailed("The backend's answer is in an encoding nobody asked for.", fault=Fault.MALFORMED)
        except BaseException:
            connection.abort()
            raise
        return response

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self.pool.aclose()

    def _write(self, request: Outbound) -> bytes:
        head = self._head(request.method, request.path, request.headers)
        if request.method == "GET":
            return head + b"\r\n"
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(request.body), request.body)

    def _written(self, method: str, path: str, headers: Headers) -> bytes:
        target = self._base + path
        if _TARGET.fullmatch(target) is None:
            raise BackendFailed("The request's path cannot be sent.")
        return f"{method} {target} HTTP/1.1\r\n".encode() + self._fixed + _lines(headers)

    async def _connect(self, make: Callable[[], Connection]) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                await asyncio.get_running_loop().create_connection(make, self._host, self._port, ssl=self._tls)
        except TimeoutError:
            raise BackendUnavailable("The backend could not be reached in time.", fault=Fault.CONNECT) from None
        except (OSError, UnicodeError):  # refused, no such host, TLS: details, and so addresses, are not for clients
            raise BackendUnavailable("The backend could not be reached.", fault=Fault.CONNECT) from None


def _lines(headers: Headers) -> bytes:
    if not all(_HEADER.fullmatch(name) and _HEADER.fullmatch(value) for name, value in headers):
        raise ValueError("a header holds characters that cannot be sent")
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode()
