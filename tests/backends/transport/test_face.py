"""httpx's interface over our sockets."""

from __future__ import annotations

import httpx
import pytest

from backends.transport import TransportLimits
from backends.transport.face import HttpxTransport
from tests.faults.upstream import END, STREAM, Close, Hang, Reset, Step, chunk, response, upstream


async def test_requests_through_httpx() -> None:
    async with upstream(lambda _: (response(b'{"a":1}', more="x-y: z\r\n"),)) as there:
        async with httpx.AsyncClient(transport=HttpxTransport(), base_url=there.url) as client:
            for _ in range(3):
                reply = await client.put("/path?q=1", json={"b": 2})
                assert (reply.status_code, reply.json(), reply.headers["x-y"]) == (200, {"a": 1}, "z")
        asked = there.asked[0]
        assert asked.line == "PUT /path?q=1 HTTP/1.1"
        assert asked.body == b'{"b":2}'
        assert there.connections == 1


async def test_a_stream_through_httpx() -> None:
    async with upstream(lambda _: (STREAM, chunk(b"one\n"), chunk(b"two\n"), END)) as there:
        client = httpx.AsyncClient(transport=HttpxTransport())
        async with client, client.stream("GET", there.url) as reply:
            assert [line async for line in reply.aiter_lines()] == ["one", "two"]


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ((Close(),), httpx.RemoteProtocolError),
        ((STREAM, chunk(b"one"), Reset()), httpx.RemoteProtocolError),
        ((Hang(),), httpx.ReadTimeout),
        ((STREAM, chunk(b"one"), Hang()), httpx.ReadTimeout),
    ],
)
async def test_failures_have_httpx_names(steps: tuple[Step, ...], error: type[httpx.TransportError]) -> None:
    transport = HttpxTransport(TransportLimits(connections=1))
    limits = httpx.Timeout(60.0, read=0.1 if error is httpx.ReadTimeout else 60.0)
    async with upstream(lambda _: steps) as there, httpx.AsyncClient(transport=transport, timeout=limits) as client:
        with pytest.raises(error):
            await client.get(there.url)
        with pytest.raises(httpx.UnsupportedProtocol):
            await client.head(there.url)


async def test_nobody_there() -> None:
    async with httpx.AsyncClient(transport=HttpxTransport()) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1/")
