"""Fetches images by URL, guarded against server-side request forgery (SSRF).

Strategy:
- Only listed hosts, and only public addresses or listed networks (`backends.images.addresses`). Both are checked for
  the first URL and for every redirect.
- A name is resolved once and the checked address is connected to. If the connection resolved the name again, a DNS
  server could return a public address for the check and a private one for the connection (DNS rebinding).
- A name with several addresses is refused if one of them is not allowed: an attacker may not choose which one is used.
- Connections are not reused: the next request to the same name is checked anew.
- No proxy, whatever the environment says: it would resolve the name itself, out of reach of the check.
- Clients get one text for all failures, so that they cannot map a network by trying addresses.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import cached_property
from urllib.parse import urljoin

import httpx

from backends.images.addresses import Target, allowed_address, allowed_target
from backends.images.header import too_many_bytes
from backends.images.options import ImageOptions
from schemas.errors import InvalidRequest

# `OSError` covers failed name resolution (`gaierror`); `TimeoutError` is the limit on the whole fetch.
_FAILURES = (TimeoutError, OSError, httpx.HTTPError)
_REDIRECTS = {301, 302, 303, 307, 308}


class Fetcher:
    """Fetches images within the limits of `options`."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options

    @cached_property
    def _client(self) -> httpx.AsyncHTTPTransport:
        # At the first fetch: most servers fetch nothing, and certificates are megabytes. Not a client of httpx,
        # which would keep cookies.
        limits = httpx.Limits(max_connections=16, max_keepalive_connections=0)
        return httpx.AsyncHTTPTransport(verify=ssl.create_default_context(), limits=limits, trust_env=False)

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
        if "_client" in self.__dict__:
            await self._client.aclose()

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
        # An encoded body could not be read as an image.
        headers = {"Host": f"{host}:{target.port}", "Accept": "image/jpeg, image/png"}
        headers |= {"Accept-Encoding": "identity", "User-Agent": "interlingua"}
        address = await self._checked_address(target)
        # By address, so that nothing resolves the name again. TLS still verifies the name.
        request = httpx.Request(
            "GET",
            httpx.URL(scheme=target.scheme, host=address, port=target.port, raw_path=target.path.encode()),
            headers=headers,
            extensions={"sni_hostname": target.host, "timeout": httpx.Timeout(None).as_dict()},
        )
        response = await self._client.handle_async_request(request)
        try:
            if response.status_code in _REDIRECTS and "location" in response.headers:
                return response.headers["location"]  # the body of a redirect is not read
            if response.status_code != 200 or not response.headers.get("content-type", "").lower().startswith("image/"):
                raise _fetch_failed()
            return await self._read(response)
        finally:
            await response.aclose()

    async def _checked_address(self, target: Target) -> str:
        """Resolve a target's name, check all its addresses, and return the first."""
        # A host that is an address already is returned as it is and checked the same way.
        loop = asyncio.get_running_loop()
        resolved = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        addresses = [str(end[0]) for *_, end in resolved]
        if not addresses or not all(allowed_address(address, self._options) for address in addresses):
            raise _fetch_failed()
        return addresses[0]

    async def _read(self, response: httpx.Response) -> bytes:
        limit = self._options.max_bytes
        length = response.headers.get("content-length", "0")
        # Refused before a byte of the body is read.
        if length.isdecimal() and int(length) > limit:
            raise too_many_bytes(self._options)
        data = bytearray()
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > limit:  # the header may be absent or wrong
                raise too_many_bytes(self._options)
        return bytes(data)


def _fetch_failed() -> InvalidRequest:
    return InvalidRequest("The image cannot be fetched.")
