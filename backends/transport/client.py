"""The client of one upstream: sends an `Outbound`, returns a status, headers and the body as it arrives.

Error statuses are ordinary replies here. Raised are the transport's own failures: not reached, too late, cut off,
unreadable. Deadlines are points of the event loop's clock instead of durations, so that one deadline can bound several
calls.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, Protocol, cast

from adapters.base import Headers, Outbound, Reply
from backends.transport.begun import BegunExchange, begun
from backends.transport.connection import Connection
from backends.transport.decoded import decoded
from backends.transport.limits import TransportLimits
from backends.transport.pool import Pool
from backends.transport.response import Response, redirected_to
from backends.transport.url import FIXED_HEADERS, VIA, check_headers, check_target, port_of, split_url
from schemas.errors import BackendUnavailable, Fault

_CACHED_HEADS = 256  # serialized request heads: an upstream gets few different paths and headers


class Exchanger(Protocol):
    """What sends requests to an upstream: a client, or one that chooses its key."""

    def exchange(self, request: Outbound, deadline: float | None = None) -> Coroutine[Any, Any, Response]:
        """Send a request and return once the head of its answer has arrived."""

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""


class _DirectResponse(Response):
    __slots__ = ("_connection", "_ended")

    def __init__(self, connection: Connection, limits: TransportLimits) -> None:
        # latin-1 maps every byte, so a header in any encoding is decoded without an error.
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in connection.headers]
        super().__init__(connection.status, tuple(headers), limits.body)
        self._connection = connection
        self._ended = False

    def read(self, deadline: float | None) -> Coroutine[Any, Any, bytes]:
        return self._connection.read(deadline)  # not awaited here: one coroutine less for every chunk

    def offer(self, take: Callable[[bytes], float | None]) -> None:
        self._connection.take = take

    async def reply(self, deadline: float | None) -> Reply:
        # Most whole answers are a single read of the socket, head and all.
        body = self._connection.whole(self._limit)
        return (
            await super().reply(deadline) if body is None else Reply(body, self.status, self.media_type, self.headers)
        )

    def finish(self) -> None:
        if not self._ended:
            self._ended = True
            self._connection.finish()

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            # Where no end of the body is known, release aborts the socket; HTTP/1.1 has no other way to cancel a
            # response.
            self._connection.release()


class Transport:
    """The direct client of one upstream.

    Args:
        url: the base URL, to which the paths of requests are appended.
        headers: sent with every request. They may hold a key: no error text repeats them.
        limits: bounds on connections.
        connect_timeout: seconds to open a connection, TLS included.
        tls: for `https`; by default with the system's certificates.
        general: asked instead once the upstream has answered with a redirect; by default a redirect is an answer.

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
        general: Exchanger | None = None,
    ) -> None:
        parts = split_url(url)
        assert parts.hostname is not None
        self._url = url
        self._host = parts.hostname
        self._port = port_of(parts)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/")  # paths of requests begin with a slash
        self._limits = limits or TransportLimits()
        self._connect_timeout = connect_timeout
        self._general = general
        self._redirects = False
        # `netloc` keeps a port that is not the default: Host must have it (RFC 9110, 7.2).
        self._fixed = _header_lines((("host", parts.netloc), *FIXED_HEADERS, *headers))
        # A cache per transport, as an attribute: `@lru_cache` on the method would share it and keep every transport
        # alive.
        self._head = lru_cache(_CACHED_HEADS)(self._serialize_head)
        self.pool = Pool(self._connect, self._limits)

    def exchange(self, request: Outbound, deadline: float | None = None) -> Coroutine[Any, Any, Response]:
        """Send a request and return once the head of its answer has arrived.

        Raises:
            schemas.errors.GatewayError: there is no answer, or none by `deadline`.
        """
        if self._redirects and self._general is not None:
            return self._general.exchange(request, deadline)
        # Serialized at the call: a path or header that cannot be sent fails before a connection is borrowed.
        return self._send(self._serialize(request), deadline, request)

    def begin(self, request: Outbound) -> BegunExchange | None:
        """Lend a connection to a request that is to be sent without a task; None: it has to wait for one."""
        if self._redirects:
            return None
        data = self._serialize(request)
        connection = self.pool.begin()
        return None if connection is None else BegunExchange(self.pool, connection, data, self._limits.body)

    async def _send(self, data: bytes, deadline: float | None, request: Outbound) -> Response:
        connection = None if (ours := begun()) is None else ours.connection_for(data, self.pool)
        was_sent = connection is not None
        if connection is None:
            connection = await self.pool.acquire(deadline, request.flow, request.tokens)
        try:
            if not was_sent:
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
                connection = await self.pool.acquire(deadline, request.flow, request.tokens)
                connection.send(data)
                try:
                    await connection.receive_head(deadline)
                except BackendUnavailable as error:
                    error.sends = 2  # the first end may have been no race, but what the request does to the upstream
                    raise
            response: Response = _DirectResponse(connection, self._limits)
            if response.header("content-encoding") not in ("", "identity"):
                response = decoded(response, self._limits)
        except BaseException:  # cancellation included: what the socket would deliver next belongs to nobody
            connection.abort()
            raise
        if self._general is not None and redirected_to(self._url, request.method, response) is not None:
            # Nothing was generated, so the request may be sent again. The next one does not come here at all.
            self._redirects = True
            response.close()
            return await self._general.exchange(request, deadline)
        return response

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self.pool.aclose()

    def _serialize(self, request: Outbound) -> bytes:
        base = self._base.removesuffix("/v1") if request.beside_v1 else self._base
        head = self._head(request.method, base + request.path, request.headers)
        if request.trace:  # differs in each request, so it has no place in the cache
            head += _header_lines(request.trace)
        if request.method == "GET":  # no body, hence no content-length (RFC 9110, 8.6)
            return head + _VIA + b"\r\n"
        # Head and body in one buffer: one write, and one packet for a small request.
        return b"%b%bcontent-length: %d\r\n\r\n%b" % (head, _VIA, len(request.body), request.body)

    def _serialize_head(self, method: str, target: str, headers: Headers) -> bytes:
        check_target(target)
        return f"{method} {target} HTTP/1.1\r\n".encode() + self._fixed + _header_lines(headers)

    async def _connect(self, make: Callable[[], Connection]) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                protocols = cast(Callable[[], asyncio.Protocol], make)
                await asyncio.get_running_loop().create_connection(protocols, self._host, self._port, ssl=self._tls)
        # The causes are for the log: they hold addresses, which are not for clients.
        # Before `OSError`, of which `TimeoutError` is a subclass.
        except TimeoutError as error:
            raise BackendUnavailable("The backend could not be reached in time.", fault=Fault.CONNECT) from error
        except (OSError, UnicodeError) as error:  # refused, no such host, TLS
            raise BackendUnavailable("The backend could not be reached.", fault=Fault.CONNECT) from error


def _header_lines(headers: Headers) -> bytes:
    check_headers(headers)
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode()


_VIA = _header_lines(VIA)
