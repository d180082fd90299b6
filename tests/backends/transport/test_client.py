"""The transport against a scripted upstream."""

from __future__ import annotations

import asyncio
import socket

import pytest

from adapters.base import Outbound
from backends.transport import Transport, TransportLimits
from schemas.errors import (
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    Fault,
    GatewayError,
    Incomplete,
    Overloaded,
)
from tests.faults.upstream import END, STREAM, Asked, Close, Hang, Pause, Play, Reset, Step, chunk, response, upstream

POST = Outbound("/generate", b'{"a":1}')


def soon(seconds: float = 60.0) -> float:
    return asyncio.get_running_loop().time() + seconds


def always(*steps: Step) -> Play:
    return lambda _: steps


async def ask(transport: Transport, deadline: float | None = None) -> bytes:
    answer = await transport.exchange(POST, deadline or soon())
    try:
        return (await answer.reply(deadline or soon())).body
    finally:
        answer.close()


async def test_a_request_is_sent_unchanged_and_the_connection_reused() -> None:
    async with upstream(always(response(b'{"b":2}'))) as there:
        transport = Transport(there.url + "/base/", headers=(("authorization", "Bearer k"),))
        assert [await ask(transport) for _ in range(3)] == [b'{"b":2}'] * 3
        assert there.connections == 1
        asked = there.asked[0]
        assert asked.line == "POST /base/generate HTTP/1.1"
        assert asked.body == POST.body
        assert asked.headers["host"] == f"127.0.0.1:{there.port}"
        assert asked.headers["authorization"] == "Bearer k"
        assert asked.headers["accept-encoding"] == "identity"
        assert asked.headers["content-type"] == "application/json"
        await transport.aclose()
        await transport.aclose()


@pytest.mark.parametrize(
    "steps",
    [
        (STREAM + chunk(b"one") + chunk(b"two") + END,),
        tuple(bytes([byte]) for byte in STREAM + chunk(b"one") + chunk(b"two") + END),
        (STREAM, Pause(0.01), chunk(b"onetwo"), Pause(0.01), END),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\none", b"two"),
        (b"HTTP/1.1 200 OK\r\n\r\none", b"two", Close()),
        (b"HTTP/1.0 200 OK\r\nconnection: close\r\n\r\nonetwo", Close()),
    ],
    ids=["at once", "byte by byte", "with pauses", "interim response", "until the end", "HTTP/1.0"],
)
async def test_a_body_is_read_in_any_framing_and_segmentation(steps: tuple[Step, ...]) -> None:
    async with upstream(always(*steps)) as there:
        transport = Transport(there.url)
        assert [await ask(transport), await ask(transport)] == [b"onetwo"] * 2
        await transport.aclose()


@pytest.mark.parametrize(
    ("steps", "error", "code"),
    [
        ((Close(),), BackendUnavailable, "upstream_reset"),
        ((Reset(),), BackendUnavailable, "upstream_reset"),
        ((b"HTTP/1.1 200 OK\r\nconte", Reset()), BackendUnavailable, "upstream_reset"),
        ((STREAM + chunk(b"one"), Close()), Incomplete, "truncated"),
        ((STREAM + chunk(b"one"), Reset()), Incomplete, "truncated"),
        ((STREAM + b"a\r\none", Close()), Incomplete, "truncated"),
        ((response(b"one")[:-1], Close()), Incomplete, "truncated"),
        ((b"HTTP/1.1 200 OK\r\n\r\none", Reset()), Incomplete, "truncated"),
        ((Hang(),), BackendTimeout, "upstream_timeout"),
        ((STREAM + chunk(b"one"), Hang()), BackendTimeout, "upstream_timeout"),
        ((b"<html>\r\n\r\n", Close()), BackendFailed, "upstream_malformed"),
        ((b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",), BackendFailed, None),
        ((STREAM + b"xyz\r\n",), BackendFailed, "upstream_malformed"),
        ((b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",), BackendFailed, "upstream_malformed"),
        ((b"HTTP/1.1 200 OK\r\n" + b"a" * 100_000,), BackendFailed, "upstream_malformed"),
        ((response(b"1", more="content-encoding: gzip\r\n"),), Incomplete, "truncated"),
        ((response(b"12", more="content-encoding: gzip\r\n"),), BackendFailed, "upstream_malformed"),
        ((response(b"1", more="content-encoding: br\r\n"),), BackendFailed, "upstream_malformed"),
        ((response(b"1" * 5000),), BackendFailed, "upstream_too_big"),
        ((response(b"1", more="content-length: 2\r\n"),), BackendFailed, "upstream_malformed"),
    ],
)
async def test_a_failure_raises_its_error_and_frees_the_connection(
    steps: tuple[Step, ...], error: type[GatewayError], code: str | None
) -> None:
    async with upstream(always(*steps)) as there:
        transport = Transport(there.url, limits=TransportLimits(body=4096))
        with pytest.raises(error) as caught:
            await ask(transport, soon(0.1 if error is BackendTimeout else 60.0))
        assert code is None or caught.value.code == code
        assert str(there.port) not in caught.value.message
        await until(lambda: transport.pool.busy == 0)
        await transport.aclose()


async def test_a_refused_connection_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        transport = Transport(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(BackendUnavailable) as caught:
            await ask(transport)
        assert caught.value.code == "upstream_connect"
        assert transport.pool.open == 0


async def test_an_unknown_host_is_unavailable() -> None:
    with pytest.raises(BackendUnavailable) as caught:
        await ask(Transport("http://no-such-host.invalid"))
    assert caught.value.code == "upstream_connect"


async def test_a_stale_connection_is_replaced_once() -> None:
    served: dict[int, int] = {}

    def play(asked: object) -> tuple[Step, ...]:
        number = asked.connection  # type: ignore[attr-defined]
        served[number] = served.get(number, 0) + 1
        return (response(b"ok"),) if served[number] == 1 else (Close(),)

    async with upstream(play) as there:
        transport = Transport(there.url)
        assert [await ask(transport) for _ in range(4)] == [b"ok"] * 4
        assert there.connections == 4
        await transport.aclose()


async def test_a_connection_that_ends_while_the_upstream_works_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.transport.connection._LONGEST_RACE", 0.02)

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"ok"),) if len(there.asked) == 1 else (Pause(0.1), Close())

    async with upstream(play) as there:
        transport = Transport(there.url)
        assert await ask(transport) == b"ok"
        with pytest.raises(BackendUnavailable) as caught:
            await ask(transport)
        assert (caught.value.fault, caught.value.sends, len(there.asked)) == (Fault.RESET, 1, 2)
        await transport.aclose()


async def test_an_error_says_that_the_request_was_sent_twice() -> None:
    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"ok"),) if len(there.asked) == 1 else (Close(),)

    async with upstream(play) as there:
        transport = Transport(there.url)
        assert await ask(transport) == b"ok"
        with pytest.raises(BackendUnavailable) as caught:
            await ask(transport)
        assert (caught.value.fault, caught.value.sends, len(there.asked)) == (Fault.RESET, 2, 3)
        await transport.aclose()


async def test_a_new_connection_that_fails_is_not_replaced() -> None:
    async with upstream(always(Close())) as there:
        with pytest.raises(BackendUnavailable):
            await ask(Transport(there.url))
        assert there.connections == 1


async def test_connections_are_bounded_and_requests_wait() -> None:
    async with upstream(always(Pause(0.01), response(b"ok"))) as there:
        transport = Transport(there.url, limits=TransportLimits(connections=4))
        assert await asyncio.gather(*(ask(transport) for _ in range(40))) == [b"ok"] * 40
        assert there.connections == 4
        await transport.aclose()


async def test_the_queue_and_the_wait_are_bounded() -> None:
    async with upstream(always(Hang())) as there:
        transport = Transport(there.url, limits=TransportLimits(connections=1, waiting=1))
        first = asyncio.create_task(ask(transport))
        await until(lambda: there.asked != [])
        with pytest.raises(BackendTimeout):
            await ask(transport, soon(0.05))
        second = asyncio.create_task(ask(transport))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await ask(transport)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await until(lambda: transport.pool.open == 0)


async def test_a_slow_reader_stops_the_sender() -> None:
    flood = b"HTTP/1.1 200 OK\r\ncontent-length: 200000000\r\n\r\n"
    async with upstream(always(flood, *[b"x" * 100_000] * 2000)) as there:
        transport = Transport(there.url)
        answer = await transport.exchange(POST, soon())
        await asyncio.sleep(0.2)
        assert len(await answer.read(soon())) < 1 << 20
        assert len(await answer.read(soon())) > 0
        answer.close()
        await until(lambda: transport.pool.open == 0 and there.gone == 1)


async def test_the_end_of_a_complete_answer_may_come_later() -> None:
    async with upstream(always(STREAM + chunk(b"all"), Pause(0.05), END)) as there:
        transport = Transport(there.url, limits=TransportLimits(linger=60.0))
        for _ in range(3):
            answer = await transport.exchange(POST, soon())
            assert await answer.read(soon()) == b"all"
            answer.finish()
            answer.close()
            await until(lambda: transport.pool.busy == 0)
        assert there.connections == 1
        await transport.aclose()


async def test_a_complete_answer_that_never_ends_is_closed() -> None:
    async with upstream(always(STREAM + chunk(b"all"), Hang())) as there:
        transport = Transport(there.url, limits=TransportLimits(linger=0.05))
        answer = await transport.exchange(POST, soon())
        answer.finish()
        await until(lambda: transport.pool.open == 0 and there.gone == 1)


async def test_a_second_response_closes_the_connection() -> None:
    async with upstream(always(response(b"ok") + response(b"more"))) as there:
        transport = Transport(there.url)
        assert await ask(transport) == b"ok"
        await until(lambda: transport.pool.open == 0)
        assert await ask(transport) == b"ok"
        assert there.connections == 2
        await transport.aclose()


@pytest.mark.parametrize("url", ["ftp://host", "host", "http://", "http://u:p@host", "http://host?x=1"])
def test_a_url_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        Transport(url)


def test_a_header_cannot_inject_another() -> None:
    with pytest.raises(ValueError, match="header") as caught:
        Transport("http://host", headers=(("authorization", "secret\r\nx: y"),))
    assert "secret" not in str(caught.value)


async def test_a_path_cannot_inject_a_header() -> None:
    with pytest.raises(BackendFailed):
        await Transport("http://host").exchange(Outbound("/a HTTP/1.1\r\nx: y", b""))


async def until(done: object) -> None:
    async with asyncio.timeout(60):
        while not done():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.005)
