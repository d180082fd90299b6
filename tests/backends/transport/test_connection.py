"""When a connection is reused and when it is closed."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from adapters.base import Outbound
from backends.transport import Transport, TransportLimits
from backends.transport.connection import Connection
from schemas.errors import BackendTimeout
from tests.backends.transport.test_client import always, ask, soon, until
from tests.faults.upstream import STREAM, Asked, Close, Hang, Pause, Step, chunk, response, upstream


@pytest.mark.slow
async def test_a_connection_with_unsent_bytes_is_closed() -> None:
    """An upstream that answers before it has read the whole request may never read the rest."""
    connections = 0
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(b"no"))
        await done.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    transport = Transport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    answer = await transport.exchange(Outbound("/generate", b"x" * (64 << 20)), soon())  # more than kernels buffer
    assert (await answer.reply(soon())).body == b"no"
    answer.close()
    assert await ask(transport) == b"no", "the next request does not wait behind the unsent bytes"
    assert connections == 2
    await transport.aclose()
    done.set()
    server.close()


@pytest.mark.parametrize(("idle", "connections"), [(14.0, 1), (15.5, 2)])
async def test_a_connection_is_reused_within_its_keep_alive_and_then_closed(idle: float, connections: int) -> None:
    async with upstream(always(response(b"ok"))) as there:
        transport = Transport(there.url, limits=TransportLimits(keep_alive=15.0))
        await ask(transport)
        (connection,) = transport.pool._idle
        connection.idle_since -= idle
        await ask(transport)
        assert there.connections == connections
        await until(lambda: transport.pool.open == there.open == 1)
        assert connection.open == (connections == 1)
        await transport.aclose()


async def test_the_connection_used_last_is_reused_first() -> None:
    async with upstream(always(response(b"ok"))) as there:
        transport = Transport(there.url)
        await asyncio.gather(*(ask(transport) for _ in range(3)))
        last = transport.pool._idle[-1]
        await ask(transport)
        assert transport.pool._idle[-1] is last
        await transport.aclose()


async def test_after_a_restart_of_the_upstream_no_idle_connection_is_reused() -> None:
    """One stale connection means that all idle ones are: the second attempt uses a new one."""
    served: set[int] = set()

    def play(asked: Asked) -> tuple[Step, ...]:
        if asked.connection in served:
            return (Close(),)
        served.add(asked.connection)
        return (Pause(0.05), response(b"ok"))

    async with upstream(play) as there:
        transport = Transport(there.url)
        await asyncio.gather(*(ask(transport) for _ in range(3)))
        assert transport.pool.open == there.connections == 3
        assert await ask(transport) == b"ok"
        assert there.connections == 4
        await transport.aclose()


async def test_a_read_ends_at_its_own_deadline_and_not_at_that_of_an_earlier_one() -> None:
    async with upstream(always(STREAM + chunk(b"one"), Pause(0.1), chunk(b"two"), Hang())) as there:
        transport = Transport(there.url)
        answer = await transport.exchange(Outbound("/", b""), soon())
        assert await answer.read(soon()) == b"one"
        answer._connection.deadline.set(soon(0.01))  # as an earlier read with that deadline has left it
        assert await answer.read(soon()) == b"two", "the timer is moved when it fires too early"
        async with asyncio.timeout(10):
            with pytest.raises(BackendTimeout):
                await answer.read(soon(0.01))
        answer.close()
        await transport.aclose()


async def test_bytes_for_which_a_read_waits_are_offered_before_it_gets_them() -> None:
    connection = Connection(TransportLimits(), lambda _: None, lambda _: None)
    connection.connection_made(Mock(**{"get_write_buffer_size.return_value": 0, "is_closing.return_value": False}))
    connection.send(b"")
    connection.data_received(STREAM)
    taken: list[bytes] = []

    def take(data: bytes) -> float | None:
        if data == b"wrong":
            raise ValueError("wrong")
        if data == b"other":
            return None
        taken.append(data)
        return soon()

    connection.take = take
    connection.data_received(chunk(b"one"))
    assert await connection.read(soon()) == b"one", "nobody waited"
    reading = asyncio.ensure_future(connection.read(soon()))
    await asyncio.sleep(0)
    for data in (b"two", b"three", b"other", b"four"):
        connection.data_received(chunk(data))
    assert await reading == b"otherfour", "nothing overtakes what was not taken"
    reading = asyncio.ensure_future(connection.read(soon()))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"wrong"))
    with pytest.raises(ValueError, match="wrong"):
        await reading
    assert await connection.read(soon()) == b"wrong"
    reading = asyncio.ensure_future(connection.read(soon()))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"last") + b"0\r\n\r\n")
    assert await reading == b"last", "the end of the body is for the reader"
    assert taken == [b"two", b"three"]
    connection.release()
    assert connection.take is None


async def test_what_is_taken_renews_the_deadline_of_the_read_that_waits() -> None:
    connection = Connection(TransportLimits(), lambda _: None, lambda _: None)
    connection.connection_made(Mock(**{"get_write_buffer_size.return_value": 0, "is_closing.return_value": False}))
    connection.send(b"")
    connection.data_received(STREAM)
    renewed = soon(1000)
    connection.take = lambda data: renewed if data == b"taken" else None
    reading = asyncio.ensure_future(connection.read(soon()))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"taken"))
    connection.data_received(b"5\r\n")  # wakes the read, and is nothing of the body
    await asyncio.sleep(0)
    assert connection.deadline.at == renewed
    connection.data_received(b"other\r\n")
    assert await reading == b"other"
