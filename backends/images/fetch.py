"""Fetches images by URL, guarded against server-side request forgery (SSRF).

Strategy:
- Only listed hosts, and only public addresses or listed networks (`backends.images.addresses`). Both are checked for
  the first URL and for every redirect.
- A name is resolved once and the checked address is connected to. If the connection resolved the name again, a DNS
  server could return a public address for the check and a private one for the connection (DNS rebinding).
- A name with several addresses is refused if one of them is not allowed: an attacker may not choose which one is used.
- Connections are not reused: the next request to the same name is checked anew.
- Clients get one text for all failures, so that they cannot map a network by trying addresses.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urljoin

import httpcore

from backends.images.addresses import Target, allowed_address, allowed_target
from backends.images.header import too_many_bytes
from backends.images.options import ImageOptions
from schemas.errors import InvalidRequest

# `OSError` covers failed name resolution (`gaierror`); `TimeoutError` is the limit on the whole fetch.
_FAILURES = (TimeoutError, OSError, httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)
_REDIRECTS = {301, 302, 303, 307, 308}


class Fetcher:
    """Fetches images within the limits of `options`."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options
        self._pool = httpcore.AsyncConnectionPool(
            network_backend=_CheckedNetwork(options), max_connections=16, max_keepalive_connections=0
        )

    async def fetch(self, url: str) -> bytes:
        """The bytes behind `url`.

        Raises:
            schemas.errors.InvalidRequest: the host is not listed, or no image can be fetched.
        """
        try:
            # One limit around all redirects: a server that sends a byte at a time cannot renew it.
            async with asyncio.timeout(self._options.fetch_seconds):
                return await self._follow(url)
        except _FAILURES as error:
            raise _fetch_failed() from error

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self._pool.aclose()

    async def _follow(self, url: str) -> bytes:
        for _ in range(self._options.max_redirects + 1):  # the first request and the redirects
            target = allowed_target(url, self._options)
            if target is None:
                raise InvalidRequest("Images are not fetched from this address; send the image itself.")
            result = await self._get(target)
            if isinstance(result, bytes):
                return result
            try:
                # A location may be relative (RFC 9110, 10.2.2). The next turn of the loop checks the result like the
                # first URL.
                url = urljoin(url, result)
            except ValueError as error:  # the location is not a URL
                raise _fetch_failed() from error
        raise _fetch_failed()

    async def _get(self, target: Target) -> bytes | str:
        """Send one GET; the image, or the location of a redirect."""
        host = f"[{target.host}]" if ":" in target.host else target.host
        headers = [("Host", f"{host}:{target.port}"), ("Accept", "image/jpeg, image/png")]
        # httpcore does not decode bodies: an encoded one could not be read as an image.
        headers += [("Accept-Encoding", "identity"), ("User-Agent", "gateway")]
        # Built from the checked parts; httpcore does not parse the client's text again.
        url = httpcore.URL(
            scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
        )
        async with self._pool.stream("GET", url, headers=headers) as response:
            received = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
            if response.status in _REDIRECTS and "location" in received:
                # The body of a redirect is not read: leaving the block closes the connection.
                return received["location"]
            if response.status != 200 or not received.get("content-type", "").lower().startswith("image/"):
                raise _fetch_failed()
            return await self._read(response, received)

    async def _read(self, response: httpcore.Response, headers: dict[str, str]) -> bytes:
        limit = self._options.max_bytes
        length = headers.get("content-length", "0")
        # Refused before a byte of the body is read.
        if length.isdecimal() and int(length) > limit:
            raise too_many_bytes(self._options)
        data = bytearray()
        async for chunk in response.aiter_stream():
            data += chunk
            if len(data) > limit:  # the header may be absent or wrong
                raise too_many_bytes(self._options)
        return bytes(data)


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """The network of httpcore, with a check between name resolution and connection."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve the name, check all its addresses, connect to the first. TLS still verifies the name."""
        # A host that is an address already is returned as it is and checked the same way.
        resolved = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(end[0]) for *_, end in resolved]
        if not addresses or not all(allowed_address(address, self._options) for address in addresses):
            raise httpcore.ConnectError("not an allowed address")
        # By address, so that nothing resolves the name again. httpcore takes the name for TLS (SNI, certificate) from
        # the URL.
        return await self._network.connect_tcp(addresses[0], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        """Sleep, as httpcore does."""
        await self._network.sleep(seconds)


def _fetch_failed() -> InvalidRequest:
    return InvalidRequest("The image cannot be fetched.")
