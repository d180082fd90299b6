"""The same sockets under `httpx.AsyncClient`, for those who want httpx's interface rather than its speed.

Not complete: no HEAD, no proxies, no HTTP/2; what httpx does above its transports (redirects, cookies, auth) it does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx

from backends.transport.client import Response, Transport
from backends.transport.limits import TransportLimits
from schemas.errors import BackendError, BackendTimeout, Fault, GatewayError, Overloaded


class HttpxTransport(httpx.AsyncBaseTransport):
    """One `Transport` per origin.

    Args:
        limits: of each origin.
        tls: for `https`; by default the system's certificates.
    """

    def __init__(self, limits: TransportLimits | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._limits = limits
        self._tls = tls
        self._origins: dict[str, Transport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request.

        Raises:
            httpx.TransportError: there is no answer.
        """
        if request.method == "HEAD":
            raise httpx.UnsupportedProtocol("HEAD is not supported", request=request)
        times = request.extensions.get("timeout", {})
        with _as_httpx(request):
            transport = self._transport(request.url, times.get("connect"))
            response = await transport.send(await _bytes(request), _deadline(times.get("read")))
        raw = [(name.encode(), value.encode("latin-1")) for name, value in response.headers]
        return httpx.Response(response.status, headers=raw, stream=_Stream(response, request, times.get("read")))

    async def aclose(self) -> None:
        """Close all connections."""
        for transport in self._origins.values():
            await transport.aclose()

    def _transport(self, url: httpx.URL, connect: float | None) -> Transport:
        origin = f"{url.scheme}://{url.netloc.decode()}"
        if origin not in self._origins:
            self._origins[origin] = Transport(
                origin, limits=self._limits, connect_timeout=connect or 5.0, tls=self._tls
            )
        return self._origins[origin]


class _Stream(httpx.AsyncByteStream):
    def __init__(self, response: Response, request: httpx.Request, timeout: float | None) -> None:
        self._response = response
        self._request = request
        self._timeout = timeout

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx(self._request):
            while data := await self._response.read(_deadline(self._timeout)):
                yield data

    async def aclose(self) -> None:
        self._response.close()


async def _bytes(request: httpx.Request) -> bytes:
    """A whole request; httpx has set its headers, Host among them."""
    body = await request.aread()
    lines = b"".join(b"%b: %b\r\n" % pair for pair in request.headers.raw)
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (request.method.encode(), request.url.raw_path, lines, body)


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else asyncio.get_running_loop().time() + timeout


@contextmanager
def _as_httpx(request: httpx.Request) -> Iterator[None]:
    """Our errors under httpx's names."""
    try:
        yield
    except GatewayError as error:
        if isinstance(error, Overloaded):
            raise httpx.PoolTimeout(error.message, request=request) from None
        if isinstance(error, BackendTimeout):
            raise httpx.ReadTimeout(error.message, request=request) from None
        if isinstance(error, BackendError) and error.fault is Fault.CONNECT:
            raise httpx.ConnectError(error.message, request=request) from None
        raise httpx.RemoteProtocolError(error.message, request=request) from None
