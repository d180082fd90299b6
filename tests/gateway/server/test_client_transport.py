"""What is written in one turn of the event loop leaves at its end, or when the connection is closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.config import Limits
from gateway.server.client_transport import ClientTransport
from gateway.server.connections import Connections
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
    await asyncio.sleep(0)
    assert recorder.written == [HEAD + b"bodymore"]


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


async def test_a_connection_that_tls_has_lost_has_hung_up(transport: Any, recorder: Any) -> None:
    """Its socket is gone a turn of the event loop before the protocol learns of it."""
    recorder.get_extra_info = lambda _: None
    recorder.get_write_buffer_size = lambda: 0
    assert transport.has_hung_up()
    assert not transport.has_stalled(1.0, 0.0)


async def test_an_error_at_one_connection_leaves_the_limits_of_the_others_in_force() -> None:
    class Swept:
        def __init__(self, error: Exception | None = None) -> None:
            self.error, self.transport, self.sweeps, self.aborted = error, self, 0, False

        def end_if_late(self, _: float) -> None:
            self.sweeps += 1
            if self.error is not None:
                raise self.error

        def abort(self) -> None:
            self.aborted = True

    connections, loop = Connections(Limits(header_timeout=0.01), str, None), asyncio.get_running_loop()
    each = [Swept(), Swept(AttributeError("fileno")), Swept()]
    connections._open = {*each}
    with capture_logs() as logged:
        for _ in each:  # a step takes a quarter of them, and one at least
            connections._sweep(loop)
    assert [one.sweeps for one in each] == [1, 1, 1]
    lost = Swept()
    connections._due, connections._step = [lost], 1
    connections._sweep(loop)
    assert lost.sweeps == 0
    assert [one.aborted for one in each] == [False, True, False]
    assert [line["event"] for line in logged] == ["connection.not_swept"]
    async with asyncio.timeout(60):
        while any(one.sweeps < 2 for one in each):  # noqa: ASYNC110 - a timer of the loop's
            await asyncio.sleep(0.001)
    connections._open.clear()


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
