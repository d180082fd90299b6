"""The general client of one upstream, over httpx: for what the direct one does not do.

That is: HTTP and SOCKS proxies, HTTP/2, Unix sockets, and redirects within the upstream's origin. It costs a hundred
times the CPU of the direct one (docs/decisions, "A transport of our own"), so requests go through it where a backend's
options or its server ask for one of these. Probes and health checks always do.

httpx's transport is used below its client, which would keep cookies and send keys along with redirects.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from adapters.base import Headers, Outbound
from backends.transport.decoded import decoded
from backends.transport.limits import TransportLimits
from backends.transport.response import Response, redirected_to
from backends.transport.url import FIXED_HEADERS, VIA, check_headers, split_url, target_of
from backends.transport.waiting_line import Turns
from schemas.errors import (
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    Fault,
    GatewayError,
    Incomplete,
    Overloaded,
)

_MOST_REDIRECTS = 3
_STREAMS = 100
"""Exchanges of an HTTP/2 connection at a time, as httpcore bounds them; it opens one connection to an upstream. More
would wait there, in order of arrival and for ever."""
_UNREACHED = (httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol)


class GeneralTransport:
    """The general client of one upstream.

    Args:
        url: the base URL, to which the paths of requests are appended.
        headers: sent with every request. They may hold a key: no error text repeats them.
        limits: bounds on connections.
        connect_timeout: seconds to open a connection, TLS included.
        tls: for `https`; by default with the system's certificates.
        proxy: the URL of an HTTP or SOCKS proxy; "" for none.
        http2: offers HTTP/2; over `http` speaks it without asking.
        unix_socket: the path of a socket to connect to, instead of the URL's host.

    Raises:
        ValueError: an argument cannot be used.
        ImportError: a package for SOCKS or HTTP/2 is not installed; the text names it.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Headers = (),
        limits: TransportLimits | None = None,
        connect_timeout: float = 2.0,
        tls: ssl.SSLContext | None = None,
        proxy: str = "",
        http2: bool = False,
        unix_socket: str | None = None,
    ) -> None:
        parts = split_url(url)
        check_headers(headers)
        self._url = url
        self._headers = (*FIXED_HEADERS, *headers)
        self._limits = limits = limits or TransportLimits()
        # Reads are bounded by the deadlines of exchanges.
        self._timeout = {"connect": connect_timeout, "pool": limits.queue_timeout, "read": None, "write": None}
        is_secure = parts.scheme == "https"
        # httpx makes one for http as well, and fills it with certificates, unless it is given.
        context = tls or (ssl.create_default_context() if is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self._http = httpx.AsyncHTTPTransport(
            verify=context,
            trust_env=False,  # the caller has chosen the proxy
            http1=is_secure or not http2,
            http2=http2,
            limits=httpx.Limits(max_connections=limits.connections, keepalive_expiry=limits.keep_alive),
            proxy=httpx.Proxy(proxy, ssl_context=_proxy_context(proxy)) if proxy else None,
            uds=unix_socket,
        )
        # Whether the upstream takes HTTP/2 is known from its first answer.
        self._turns = Turns(limits, min(limits.connections, _STREAMS) if http2 else limits.connections)
        self._is_narrow = http2
        self._ending: set[asyncio.Task[None]] = set()  # the event loop holds weak references only

    async def exchange(self, request: Outbound, deadline: float | None = None) -> Response:
        """Send a request and return once the head of its answer has arrived. Redirects within the origin are followed.

        Raises:
            schemas.errors.GatewayError: there is no answer, or none by `deadline`.
        """
        url = f"{urlsplit(self._url).scheme}://{urlsplit(self._url).netloc}{target_of(self._url, request)}"
        check_headers((*request.headers, *request.trace))
        for _ in range(_MOST_REDIRECTS):
            response = await self._send(request, url, deadline)
            to = redirected_to(url, request.method, response)
            if to is None:
                return response
            response.close()
            url = to
        return await self._send(request, url, deadline)

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._http.aclose()

    async def _send(self, request: Outbound, url: str, deadline: float | None) -> Response:
        content = None if request.method == "GET" else request.body
        sent = httpx.Request(
            request.method,
            url,
            headers=[*self._headers, *request.headers, *request.trace, *VIA],
            content=content,
            extensions={"timeout": self._timeout},
        )
        begun = asyncio.Event()

        async def note_begin(*_: object) -> None:
            begun.set()

        sent.extensions["trace"] = note_begin
        await self._turns.enter(request, deadline)
        # A task of its own: httpcore loses a connection whose request is cancelled between its assignment and its use.
        asking = asyncio.ensure_future(self._http.handle_async_request(sent))
        try:
            async with asyncio.timeout_at(deadline):
                answer = await asyncio.shield(asking)
        except (TimeoutError, httpx.HTTPError) as error:
            self._end(_abandon(asking, begun))
            raise _no_answer(error) from error
        except BaseException:
            self._end(_abandon(asking, begun))
            raise
        if self._is_narrow and answer.extensions.get("http_version") != b"HTTP/2":
            # Each exchange has a connection of its own.
            self._is_narrow = False
            self._turns.widen(self._limits.connections)
        response = _Answer(answer, self._limits, self._end)
        if response.header("content-encoding") not in ("", "identity"):
            try:
                return decoded(response, self._limits)
            except GatewayError:
                response.close()
                raise
        return response

    def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Give a connection back, which awaits, without making the caller wait."""
        task = asyncio.ensure_future(ending)
        self._ending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._turns.leave()
        self._ending.discard(task)


class _Answer(Response):
    __slots__ = ("_answer", "_end", "_ended", "_limits", "_pieces")

    def __init__(self, answer: httpx.Response, limits: TransportLimits, end: Any) -> None:
        raw = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in answer.headers.raw]
        super().__init__(answer.status_code, tuple(raw), limits.body)
        self._answer = answer
        self._limits = limits
        self._end = end
        self._ended = False
        self._pieces: AsyncIterator[bytes] = answer.aiter_raw()

    async def read(self, deadline: float | None) -> bytes:
        try:
            async with asyncio.timeout_at(deadline):
                async for data in self._pieces:
                    if data:
                        return data
        except TimeoutError:
            raise BackendTimeout("The backend did not answer in time.", fault=Fault.TIMEOUT) from None
        except httpx.HTTPError as error:
            message = "The backend's answer stopped before it was finished."
            raise Incomplete(message, fault=Fault.TRUNCATED) from error
        return b""

    def finish(self) -> None:
        if not self._ended:
            self._ended = True
            self._end(self._drain())

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._end(self._answer.aclose())

    async def _drain(self) -> None:
        # A stream's last event often comes a packet before the last chunk, and httpcore reuses a connection only after
        # that.
        with suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(self._limits.linger):
                async for _ in self._pieces:
                    pass
        await self._answer.aclose()


async def _abandon(asking: asyncio.Task[httpx.Response], begun: asyncio.Event) -> None:
    """End a request for whose answer nobody waits any more."""
    if not asking.done():
        beginning = asyncio.ensure_future(begun.wait())
        await asyncio.wait((asking, beginning), return_when=asyncio.FIRST_COMPLETED)
        beginning.cancel()
        asking.cancel()
    with suppress(asyncio.CancelledError, httpx.HTTPError):
        await (await asking).aclose()


def _proxy_context(proxy: str) -> ssl.SSLContext | None:
    return ssl.create_default_context() if proxy.startswith("https:") else None


def _no_answer(error: Exception) -> GatewayError:
    """The error of a request that got no answer."""
    if isinstance(error, httpx.PoolTimeout):
        return Overloaded("The backend's queue is slow.", retry_after=1.0)
    if isinstance(error, httpx.ConnectTimeout):
        return BackendUnavailable("The backend could not be reached in time.", fault=Fault.CONNECT)
    if isinstance(error, _UNREACHED):
        return BackendUnavailable("The backend could not be reached.", fault=Fault.CONNECT)
    if isinstance(error, TimeoutError):
        return BackendTimeout("The backend did not answer in time.", fault=Fault.TIMEOUT)
    if isinstance(error, httpx.RemoteProtocolError) and "disconnected" not in str(error):
        return BackendFailed("The backend's answer could not be read: no HTTP.", fault=Fault.MALFORMED)
    return BackendUnavailable("The backend closed the connection before it answered.", fault=Fault.RESET)
