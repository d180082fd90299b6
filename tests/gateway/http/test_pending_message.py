"""ASGI's `receive`, driven by hand; and the work of a client that leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.http.client import AsgiClient, cancel_on_disconnect
from gateway.http.pending_message import PendingMessage

DISCONNECT = {"type": "http.disconnect"}


def after(*steps: float | asyncio.Future[None]) -> Any:
    """A `receive` that waits for each of these, then says that the client left."""

    async def receive() -> Any:
        for step in steps:
            await (asyncio.sleep(step) if isinstance(step, float) else step)
        return DISCONNECT

    return receive


def client(receive: Any) -> AsgiClient:
    async def send(_: object) -> None:
        """Nothing is answered."""

    return AsgiClient(receive, send)


async def test_a_message_that_is_there_needs_no_waiting() -> None:
    pending = PendingMessage(after())
    assert pending.message == DISCONNECT
    assert await pending == DISCONNECT


async def test_a_message_is_waited_for_through_every_step() -> None:
    pending = PendingMessage(after(0.001, 0.0, 0.001))
    assert pending.message is None
    assert await pending == DISCONNECT


async def test_a_watcher_is_called_once() -> None:
    for receive in (after(), after(0.001, 0.001)):
        calls: list[None] = []
        PendingMessage(receive).watch(lambda calls=calls: calls.append(None))
        await asyncio.sleep(0.05)
        assert len(calls) == 1


async def test_a_closed_watcher_is_not_called_even_if_its_message_was_on_its_way() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    calls: list[None] = []
    pending = PendingMessage(after(future))
    pending.watch(lambda: calls.append(None))
    future.set_result(None)  # the callback is scheduled now
    pending.close()
    await asyncio.sleep(0.01)
    assert calls == []


async def test_an_abandoned_wait_closes_the_call() -> None:
    closed = asyncio.Event()

    async def receive() -> Any:
        try:
            await asyncio.sleep(60)
        finally:
            closed.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await PendingMessage(receive)
    assert closed.is_set()


async def test_work_is_done_while_the_client_stays() -> None:
    done: list[None] = []

    async def work() -> None:
        await asyncio.sleep(0.001)
        done.append(None)

    await cancel_on_disconnect(client(after(60.0)), work())
    assert done == [None]


@pytest.mark.parametrize("receive", [after(), after(0.01)], ids=["gone already", "leaves"])
async def test_work_is_cancelled_when_the_client_leaves_and_the_task_goes_on(receive: Any) -> None:
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        try:
            await asyncio.sleep(60)
        finally:
            cancelled = True

    await cancel_on_disconnect(client(receive), work())
    assert cancelled
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # a cancellation left over would be raised here


async def test_anothers_cancellation_is_passed_on() -> None:
    task = asyncio.create_task(cancel_on_disconnect(client(after(60.0)), asyncio.sleep(60)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_the_work_raises_is_passed_on() -> None:
    async def work() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await cancel_on_disconnect(client(after(60.0)), work())
