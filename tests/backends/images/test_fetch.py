"""Fetching images over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from backends.images.fetch import Fetcher
from backends.images.options import ImageOptions
from schemas.errors import InvalidRequest
from tests.backends.images import files
from tests.backends.images.audit import recorded_events

IMAGE = files.file()
OK = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n%b" % (len(IMAGE), IMAGE)


class Site:
    """A server that answers every connection with the same bytes and records the requests."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.port = 0
        self.tasks: list[asyncio.Task[Any] | None] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.current_task())
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        if self.answer.endswith(b"..."):
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def site(answer: bytes = OK, address: str = "127.0.0.1") -> AsyncIterator[Site]:
    made = Site(answer)
    server = await asyncio.start_server(made.handle, address, 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made
    await asyncio.gather(*filter(None, made.tasks), return_exceptions=True)


async def fetch(url: str, *hosts: str, networks: tuple[str, ...] = ("127.0.0.0/8",), **limits: Any) -> bytes:
    fetcher = Fetcher(ImageOptions(hosts=hosts, networks=networks, **limits))
    try:
        return await fetcher.fetch(url)
    finally:
        await fetcher.aclose()


def redirect(url: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode()


async def test_an_image_of_a_listed_host_is_fetched() -> None:
    async with site() as there:
        assert await fetch(f"http://127.0.0.1:{there.port}/a%20b.png?c=d", f"127.0.0.1:{there.port}") == IMAGE
    (request,) = there.requests
    assert request.startswith(b"GET /a%20b.png?c=d HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"identity" in request


async def test_a_redirect_to_a_listed_host_is_followed() -> None:
    async with site() as there, site() as first:
        first.answer = redirect(f"http://127.0.0.1:{there.port}/b")
        hosts = (f"127.0.0.1:{first.port}", f"127.0.0.1:{there.port}")
        assert await fetch(f"http://127.0.0.1:{first.port}/", *hosts) == IMAGE
    assert len(there.requests) == 1


@pytest.mark.parametrize(
    "to", ["http://127.0.0.1:{port}/", "//127.0.0.1:{port}/", "file:///etc/passwd", "http://[::1]/"]
)
async def test_a_redirect_to_another_host_is_refused(to: str) -> None:
    async with site() as secret, site() as first:
        first.answer = redirect(to.format(port=secret.port))
        with pytest.raises(InvalidRequest, match="not fetched from this address"):
            await fetch(f"http://127.0.0.1:{first.port}/", f"127.0.0.1:{first.port}")
    assert not secret.requests


async def test_redirects_are_bounded() -> None:
    async with site() as there:
        there.answer = redirect("/again")
        with pytest.raises(InvalidRequest, match="cannot be fetched"):
            await fetch(f"http://127.0.0.1:{there.port}/", f"127.0.0.1:{there.port}")
    assert len(there.requests) == 3


async def test_a_listed_host_with_a_private_address_is_not_connected_to() -> None:
    async with site() as secret:
        with recorded_events() as seen, pytest.raises(InvalidRequest, match="cannot be fetched") as refused:
            await fetch(f"http://localhost:{secret.port}/", f"localhost:{secret.port}", networks=())
    assert not secret.requests
    assert not [event for event, _ in seen if event == "socket.connect"]
    assert "localhost" not in refused.value.message


async def test_a_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: a second resolution would return another address."""
    resolved: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        resolved.append(host)
        address = "127.0.0.1" if len(resolved) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async with site() as there:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        with recorded_events() as seen:
            url, host = f"http://pics.example:{there.port}/", f"pics.example:{there.port}"
            assert await fetch(url, host, networks=("127.0.0.1/32",)) == IMAGE
    assert resolved == ["pics.example"]
    assert [arguments[1] for event, arguments in seen if event == "socket.connect"] == [("127.0.0.1", there.port)]


async def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with recorded_events() as seen, pytest.raises(InvalidRequest, match="cannot be fetched"):
        await fetch("http://pics.example/", "pics.example", networks=())
    assert not [event for event, _ in seen if event == "socket.connect"]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n"
BAD = {
    "not found": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "cannot be fetched"),
    "another type": (OK.replace(b"image/png", b"text/html"), "cannot be fetched"),
    "no type": (OK.replace(b"Content-Type: image/png\r\n", b""), "cannot be fetched"),
    "too long by its header": (HEAD + b"Content-Length: 5000\r\n\r\n...", "larger than 1000 bytes"),
    "too long by its body": (HEAD + b"\r\n" + b"x" * 5000, "larger than 1000 bytes"),
    "cut": (HEAD + b"Content-Length: 900\r\n\r\nabc", "cannot be fetched"),
    "slow": (HEAD + b"Content-Length: 900\r\n\r\n...", "cannot be fetched"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n", "cannot be fetched"),
    "nothing": (b"", "cannot be fetched"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "words"), BAD.values(), ids=BAD)
async def test_a_response_without_a_usable_image_is_refused(answer: bytes, words: str) -> None:
    async with site(answer) as there:
        limits = {"max_bytes": 1000, "fetch_seconds": 0.5 if answer == BAD["slow"][0] else 60.0}
        with pytest.raises(InvalidRequest, match=words) as refused:
            await fetch(f"http://127.0.0.1:{there.port}/", f"127.0.0.1:{there.port}", **limits)
    assert "127.0.0.1" not in refused.value.message


async def test_a_host_that_does_not_answer_is_refused_with_the_same_text() -> None:
    with pytest.raises(InvalidRequest, match="cannot be fetched"):
        await fetch("http://127.0.0.1:1/", "127.0.0.1:1")
