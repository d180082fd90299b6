"""What is written in one turn of the event loop leaves at its end, in order, but not more than a bound has to wait."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from backends.transport.outbox import Outbox, plain
from tests.missing_tools import missing

Opened = Callable[[], tuple["Socket", Outbox]]


class Socket:
    """A transport that remembers."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False
        self.buffered = 0

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.buffered


@pytest.fixture(params=["plain", "compiled"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Opens a socket, with an outbox of its own."""
    name = f"backends.transport.outbox.{request.param}"
    made: Any = (
        importlib.import_module(name)
        if request.param == "plain"
        else pytest.importorskip(name, reason=missing("a C compiler"))
    )
    of_loops: dict[asyncio.AbstractEventLoop, Any] = {}

    def open_one() -> tuple[Socket, Outbox]:
        socket, loop = Socket(), asyncio.get_running_loop()
        return socket, made.Outbox(cast(Any, socket), of_loops.setdefault(loop, made.Outboxes(loop)))

    return open_one


async def test_writes_of_a_turn_are_one(opened: Opened) -> None:
    socket, box = opened()
    box.write(b"a")
    box.write(b"b")
    assert not socket.written
    await asyncio.sleep(0)
    assert socket.written == [b"ab"]
    box.write(b"c")
    await asyncio.sleep(0)
    assert socket.written == [b"ab", b"c"]
    assert box.written == 3


async def test_what_is_held_is_unsent(opened: Opened) -> None:
    socket, box = opened()
    socket.buffered = 5
    box.write(b"abc")
    assert box.unsent == 8
    box.flush()
    assert socket.written == [b"abc"]
    assert box.unsent == 5
    await asyncio.sleep(0)
    assert socket.written == [b"abc"]


async def test_many_bytes_do_not_wait(opened: Opened) -> None:
    """The transport is to tell that a reader is slow within the turn in which too much is written for it."""
    socket, box = opened()
    for _ in range(65):
        box.write(b"x" * 1024)
    assert [len(data) for data in socket.written] == [65 * 1024]


async def test_many_sockets_do_not_wait(opened: Opened) -> None:
    both = [opened() for _ in range(plain.MOST_SOCKETS + 1)]
    for _, box in both:
        box.write(b"x")
    assert [len(socket.written) for socket, _ in both] == [1] * plain.MOST_SOCKETS + [0]
    await asyncio.sleep(0)
    assert [len(socket.written) for socket, _ in both] == [1] * len(both)


async def test_where_few_sockets_are_written_to_one_need_not_wait(opened: Opened) -> None:
    few = [opened() for _ in range(plain.FEW_SOCKETS)]
    for socket, box in few:
        box.write(b"x")
        box.flush_early()
        assert socket.written == [b"x"]
    socket, box = few[0]
    box.write(b"y")
    box.flush_early()
    assert socket.written == [b"x"], "as many are written to as would wake many processes"
    await asyncio.sleep(0)
    assert [each.written for each, _ in few] == [[b"x", b"y"], [b"x"], [b"x"], [b"x"]]


async def test_behind_a_turn_that_wrote_to_many_sockets_all_wait(opened: Opened) -> None:
    for _, box in [opened() for _ in range(plain.FEW_SOCKETS + 1)]:
        box.write(b"x")
    await asyncio.sleep(0)
    for expected in (0, 1):
        await asyncio.sleep(0)  # a turn without a write says nothing
        socket, box = opened()
        box.write(b"x")
        box.flush_early()
        assert len(socket.written) == expected
        await asyncio.sleep(0)
        assert socket.written == [b"x"]


async def test_a_closed_socket_is_passed_by(opened: Opened) -> None:
    (closed, first), (socket, second) = opened(), opened()
    first.write(b"x")
    second.write(b"y")
    closed.closing = True
    await asyncio.sleep(0)
    assert (closed.written, socket.written) == ([], [b"y"])


async def test_a_socket_that_fails_holds_nothing_of_the_others_up(opened: Opened) -> None:
    (failing, first), (socket, second) = opened(), opened()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    first.write(b"x")
    second.write(b"y")
    failing.write = None  # type: ignore[assignment, method-assign]
    await asyncio.sleep(0)
    assert socket.written == [b"y"]
    assert [type(context["exception"]) for context in reported] == [TypeError]


def test_a_loop_that_ended_within_a_turn_holds_nothing_of_the_next_up(opened: Opened) -> None:
    async def leave() -> None:
        opened()[1].write(b"lost")

    async def write() -> None:
        socket, box = opened()
        box.write(b"x")
        await asyncio.sleep(0)
        assert socket.written == [b"x"]

    asyncio.run(leave())
    asyncio.run(write())
