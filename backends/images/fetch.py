"""Fetches pictures from listed hosts. Every redirect is checked like the first URL, and every name is resolved once:
what is connected to is the address that was checked.

The client never hears why a fetch failed, or it could map a network by asking.
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

_FAILURES = (TimeoutError, OSError, httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)
_REDIRECTS = {301, 302, 303, 307, 308}


class Fetcher:
    """Fetches within the limits of `options`; connections are not kept."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options
        self._pool = httpcore.AsyncConnectionPool(
            network_backend=_CheckedNetwork(options), max_connections=16, max_keepalive_connections=0
        )

    async def fetch(self, url: str) -> bytes:
        """The bytes behind `url`.

        Raises:
            schemas.errors.InvalidRequest: its host is not listed, or there is no such picture.
        """
        try:
            async with asyncio.timeout(self._options.fetch_seconds):
                return await self._follow(url)
        except _FAILURES as error:
            raise _unfetched() from error

    async def aclose(self) -> None:
        """Close what is open. Idempotent."""
        await self._pool.aclose()

    async def _follow(self, url: str) -> bytes:
        for _ in range(self._options.max_redirects + 1):
            target = allowed_target(url, self._options)
            if target is None:
                raise InvalidRequest("Images are not fetched from this address; send the image itself.")
            found = await self._get(target)
            if isinstance(found, bytes):
                return found
            try:
                url = urljoin(url, found)
            except ValueError as error:  # no URL at all
                raise _unfetched() from error
        raise _unfetched()

    async def _get(self, target: Target) -> bytes | str:
        """A picture, or where else it is."""
        host = f"[{target.host}]" if ":" in target.host else target.host
        headers = [("Host", f"{host}:{target.port}"), ("Accept", "image/jpeg, image/png")]
        headers += [("Accept-Encoding", "identity"), ("User-Agent", "gateway")]
        url = httpcore.URL(
            scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
        )
        async with self._pool.stream("GET", url, headers=headers) as response:
            told = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
            if response.status in _REDIRECTS and "location" in told:
                return told["location"]
            if response.status != 200 or not told.get("content-type", "").lower().startswith("image/"):
                raise _unfetched()
            return await self._read(response, told)

    async def _read(self, response: httpcore.Response, told: dict[str, str]) -> bytes:
        most = self._options.max_bytes
        length = told.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise too_many_bytes(self._options)
        data = bytearray()
        async for chunk in response.aiter_stream():
            data += chunk
            if len(data) > most:
                raise too_many_bytes(self._options)
        return bytes(data)


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked, and to no others."""

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
        """Resolve once; all of a name's addresses must be allowed."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(end[0]) for *_, end in found]
        if not addresses or not all(allowed_address(address, self._options) for address in addresses):
            raise httpcore.ConnectError("not an allowed address")
        return await self._network.connect_tcp(addresses[0], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        """Httpcore's own."""
        await self._network.sleep(seconds)


def _unfetched() -> InvalidRequest:
    return InvalidRequest("The image cannot be fetched.")
