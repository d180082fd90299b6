"""Response headers wait for the first bytes of the body, for one turn of the event loop at most; nothing else waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.process.client_transport import ClientTransport
from tests.gateway.serving import listening, scripted

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Recorder:
    """A transport that remembers."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.written.append(b"closed")

    def is_closing(self) -> bool:
        return self.written[-1:] == [b"closed"]


@pytest.fixture
async def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def transport(recorder: Recorder) -> ClientTransport:
    return ClientTransport(recorder, asyncio.get_running_loop(), lambda: False, lambda: None)  # type: ignore[arg-type]


async def test_a_head_leaves_with_what_follows(transport: Any, recorder: Recorder) -> None:
    transport.write(HEAD)
    transport.write(b"body")
    transport.write(b"more")
    assert recorder.written == [HEAD + b"body", b"more"]
    await asyncio.sleep(0)
    assert recorder.written == [HEAD + b"body", b"more"]


async def test_a_head_alone_leaves_with_the_next_turn(transport: Any, recorder: Recorder) -> None:
    transport.write(HEAD)
    assert recorder.written == []
    await asyncio.sleep(0)
    assert recorder.written == [HEAD]


async def test_closing_sends_what_waits(transport: Any, recorder: Recorder) -> None:
    transport.write(HEAD)
    transport.close()
    assert recorder.written == [HEAD, b"closed"]
    assert transport.is_closing()


@pytest.mark.slow
async def test_requests_in_a_row_and_a_head_without_body() -> None:
    app, _ = scripted("m")
    async with listening(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"HEAD /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
            b"GET /info HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )
        answers = await asyncio.wait_for(reader.read(), 60)
        writer.close()
    first, _, second = answers.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200")
    assert second.startswith(b"HTTP/1.1 200")
    assert second.endswith(b"}")
