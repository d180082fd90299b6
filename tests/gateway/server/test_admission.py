"""Requests that come at once begin in several turns of the event loop, in their order, and each gets its answer."""

from __future__ import annotations

import asyncio
from functools import partial

from gateway.config import Limits, ServerSection
from gateway.server.admission import _MOST, Admission
from tests.gateway.serving import listening, scripted

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
BODY = b'{"model":"echo","messages":[{"role":"user","content":"number %d"}]}'
COUNT = 3 * _MOST + 1


async def test_a_turn_has_so_many_and_later_ones_the_rest_in_order() -> None:
    admission, begun = Admission(), list[int]()
    for number in range(COUNT):
        if admission.admit(partial(begun.append, number)):
            begun.append(number)
    assert begun == [*range(_MOST)]
    for turn in range(10):
        await asyncio.sleep(0)
        if turn == 0:  # it comes later, and goes behind all that wait
            assert not admission.admit(partial(begun.append, COUNT))
    assert begun == [*range(COUNT + 1)]
    assert admission.admit(begun.clear), "nobody waits any more"


async def test_all_that_come_at_once_are_answered() -> None:
    app, _ = scripted("echo")
    async with listening(app) as port:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(COUNT)]
        for number, (_, writer) in enumerate(clients):  # no `await` in here: the server reads them in one turn
            body = BODY % number
            writer.write(HEAD % len(body) + body)
        for number, (reader, writer) in enumerate(clients):
            answer = await asyncio.wait_for(reader.readuntil(b"}]"), 30)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"number %d" % number in answer
            writer.close()


async def test_more_that_comes_while_a_request_waits_is_read_behind_it() -> None:
    app, _ = scripted("echo")
    async with listening(app) as port:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(COUNT)]
        for number, (_, writer) in enumerate(clients):
            body = BODY % number
            writer.write(HEAD % len(body) + body[:20])
        await asyncio.sleep(0)
        for number, (_, writer) in enumerate(clients):
            body = BODY % (number + 1000)
            writer.write((BODY % number)[20:] + HEAD % len(body) + body)
        for number, (reader, writer) in enumerate(clients):
            for expected in (number, number + 1000):
                await asyncio.wait_for(reader.readuntil(b"number %d" % expected), 30)
            writer.close()


async def test_clients_that_leave_while_they_wait_hold_nobody_up() -> None:
    app, _ = scripted("echo", server=ServerSection(limits=Limits(header_timeout=5)))
    async with listening(app) as port:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(COUNT)]
        for number, (_, writer) in enumerate(clients):
            body = BODY % number
            writer.write(HEAD % len(body) + body)
            if number % 2:
                writer.transport.abort()
        for number, (reader, writer) in enumerate(clients):
            if not number % 2:
                await asyncio.wait_for(reader.readuntil(b"number %d" % number), 30)
                writer.close()
