"""The head of an answer: framed as uvicorn frames it, and never with a header that is two."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.server.answer_cycle import AnswerCycle


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.data = b""
        self.writes = 0
        self.ended = ""

    def write(self, data: bytes) -> None:
        self.data += data
        self.writes += 1

    def get_extra_info(self, name: str) -> Any:
        assert name == "socket"

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


def cycle(method: str = "POST", *, keep_alive: bool = True, version: str = "1.1") -> tuple[AnswerCycle, Written]:
    transport: Any = Written()
    log = logging.getLogger("test")
    made = AnswerCycle(
        scope={"type": "http", "method": method, "http_version": version},  # type: ignore[typeddict-item, arg-type]
        transport=transport,
        flow=FlowControl(transport),
        logger=log,
        access_logger=log,
        access_log=False,
        default_headers=[(b"date", b"today")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )
    return made, transport


async def head(
    *headers: tuple[bytes, bytes], status: int = 200, method: str = "POST", keep_alive: bool = True
) -> bytes:
    made, transport = cycle(method, keep_alive=keep_alive)
    await made.send({"type": "http.response.start", "status": status, "headers": list(headers)})
    return transport.data


async def test_a_length_frames_the_body() -> None:
    assert await head((b"Content-Length", b"2")) == b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\n"


async def test_without_a_length_the_body_is_chunked() -> None:
    assert (await head()).endswith(b"\r\ntransfer-encoding: chunked\r\n\r\n")
    assert b"chunked" not in await head(method="HEAD")
    assert b"chunked" not in await head(status=204)


async def test_the_end_of_the_connection_is_that_of_a_body_in_http_1_0() -> None:
    made, transport = cycle(keep_alive=False, version="1.0")

    async def answer(*_: Any) -> None:
        await made.send({"type": "http.response.start", "status": 200, "headers": []})
        await made.write(b"a")
        assert made.at_once is not None
        made.at_once(b"b")
        made.flow.pause_writing()
        made.flow.resume_writing()
        await made.send({"type": "http.response.body", "body": b"c", "more_body": True})
        await made.send({"type": "http.response.body", "body": b"d", "more_body": False})

    await made.run_asgi(answer)
    assert transport.data == b"HTTP/1.1 200 OK\r\ndate: today\r\nconnection: close\r\n\r\nabcd"
    assert transport.ended == "closed"


@pytest.mark.parametrize(("version", "ended"), [("1.0", "aborted"), ("1.1", "closed")])
async def test_a_body_that_is_cut_off_has_no_clean_end(version: str, ended: str) -> None:
    made, transport = cycle(keep_alive=False, version=version)

    async def answer(*_: Any) -> None:
        await made.send({"type": "http.response.start", "status": 200, "headers": []})
        await made.write(b"a")

    await made.run_asgi(answer)
    assert not transport.data.endswith(b"0\r\n\r\n")
    assert transport.ended == ended


async def test_a_connection_that_ends_says_so_once() -> None:
    assert (await head((b"content-length", b"0"), keep_alive=False)).count(b"connection: close") == 1
    made, transport = cycle()
    headers = [(b"connection", b"x, Close"), (b"content-length", b"0")]
    await made.send({"type": "http.response.start", "status": 413, "headers": headers})
    assert not made.keep_alive
    assert transport.data.count(b"connection") == 1


@pytest.mark.parametrize(
    "header", [(b"a", b"b\r\nc: d"), (b"a b", b"c"), (b"a", b"b\x00"), (b"", b"x"), (b"a\n", b"x")]
)
async def test_a_header_that_is_none_is_not_written(header: tuple[bytes, bytes]) -> None:
    made, transport = cycle()
    with pytest.raises(RuntimeError, match="Invalid HTTP header"):
        await made.send({"type": "http.response.start", "status": 200, "headers": [header]})
    assert transport.data == b""


async def test_a_body_without_a_head_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"http\.response\.start"):
        await cycle()[0].send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(("method", "body"), [("POST", b"ok"), ("HEAD", b"")])
async def test_a_whole_answer_is_one_write(method: str, body: bytes) -> None:
    made, transport = cycle(method)
    await made.answer(200, [(b"content-length", b"2")], b"ok")
    assert transport.data == b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\n" + body
    assert transport.writes == 1
    assert made.response_complete


async def test_an_answer_to_a_client_that_has_left_is_not_written() -> None:
    made, transport = cycle()
    made.lose_client()
    await made.answer(200, [(b"content-length", b"2")], b"ok")
    assert transport.data == b""


async def test_a_body_is_taken_once_it_has_come_as_a_whole() -> None:
    made, _ = cycle()
    made.body += b"on"
    assert made.take_body() is None
    made.body += b"e"
    made.more_body = False
    assert made.take_body() == b"one"
    assert made.take_body() is None


async def test_a_client_that_waits_for_a_word_gets_it_before_its_body_is_taken() -> None:
    made, transport = cycle()
    made.waiting_for_100_continue, made.more_body = True, False
    transport.is_closing = lambda: False  # type: ignore[attr-defined]
    made.body += b"one"
    assert made.take_body() is None
    made.message_event.set()
    assert (await made.receive())["body"] == b"one"
    assert transport.data == b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_who_leaves_is_reported_to_who_watches() -> None:
    made, _ = cycle()
    left: list[str] = []
    made.watch(lambda: left.append("before"))
    made.unwatch()
    made.watch(lambda: left.append("now"))
    made.lose_client()
    made.unwatch()
    made.watch(lambda: left.append("later"))
    assert left == ["now", "later"]
