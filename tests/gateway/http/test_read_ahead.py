"""Reading ahead: nothing is lost, reordered or held back, and the backend is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from unittest.mock import Mock

import pytest

from gateway.http.read_ahead import MOST, DirectSink, _Reading, read_ahead
from schemas.errors import Incomplete
from schemas.ir import Delta, Events


class Source:
    """A backend that yields a batch for each number, and may fail behind them."""

    def __init__(self, count: int, *, pause: bool = False, yields: bool = False, fails: bool = False) -> None:
        self.count, self.pause, self.yields, self.fails = count, pause, yields, fails
        self.asked = 0
        self.closed = False

    async def events(self) -> AsyncGenerator[Events, None]:
        try:
            for number in range(self.count):
                if self.pause:
                    await asyncio.sleep(0.001)
                for _ in range(3 * self.yields):  # the reader's turns
                    await asyncio.sleep(0)
                self.asked += 1
                yield (Delta(0, f"{number} "),)
            if self.fails:
                raise Incomplete("cut")
        finally:
            self.closed = True


async def text_of(source: Source, took: list[int], *, wait: float = 0.0) -> str:
    text = ""
    async for batch in read_ahead(source.events()):
        took.append(len(batch))
        text += "".join(event.text for event in batch if isinstance(event, Delta))
        await asyncio.sleep(wait)
    return text


@pytest.mark.parametrize("pause", [False, True])
async def test_all_events_come_in_order(pause: bool) -> None:
    source, took = Source(100, pause=pause), list[int]()
    assert (await text_of(source, took)).split() == [str(number) for number in range(100)]
    assert source.closed
    assert max(took) <= MOST


async def test_what_comes_during_a_write_is_one_batch() -> None:
    source, took = Source(20, pause=True), list[int]()
    await text_of(source, took, wait=0.05)
    assert len(took) < 10


async def test_an_event_does_not_wait_for_the_next_one() -> None:
    source = Source(2, pause=True)
    events = read_ahead(source.events())
    assert await anext(events) == (Delta(0, "0 "),)
    await events.aclose()
    assert source.asked == 1
    assert source.closed


async def test_events_of_a_fast_server_are_joined_for_the_pause_alone() -> None:
    for pause, sizes in ((3600.0, [1, MOST, MOST, 40 - 1 - 2 * MOST]), (0.0, [1] * 40)):
        took = [len(batch) async for batch in read_ahead(Source(40, yields=True).events(), pause)]
        assert took == sizes


async def test_a_failure_comes_behind_what_was_read() -> None:
    source, took = Source(3, fails=True), list[int]()
    with pytest.raises(Incomplete):
        await text_of(source, took, wait=0.01)
    assert sum(took) == 3


async def test_a_reader_that_leaves_closes_the_backend() -> None:
    source = Source(1000)
    events = read_ahead(source.events())
    await anext(events)
    await asyncio.sleep(0)
    await events.aclose()
    assert source.closed
    assert source.asked <= 2 * MOST


async def test_a_timer_that_comes_early_leaves_no_other_behind() -> None:
    """As uvloop's may: what comes behind it sets a second one for the same batch."""
    more = asyncio.Event()

    async def events() -> AsyncGenerator[Events, None]:
        yield (Delta(0, "a"),)
        await more.wait()
        yield (Delta(0, "b"),)
        await asyncio.sleep(0.1)
        yield (Delta(0, "c"),)

    reading = _Reading(events(), 0.05)
    assert await reading.next() == (Delta(0, "a"),)
    reading._end_pause()
    more.set()
    await asyncio.sleep(0.01)
    assert await reading.next() == (Delta(0, "b"),)
    assert await reading.next() == (Delta(0, "c"),)
    assert await reading.next() == ()


def test_a_sink_takes_batches_only_while_the_client_takes_bytes_without_a_wait() -> None:
    account, client, written = Mock(first_token=0.1, texts=None), Mock(at_once=None), []
    sink = DirectSink(account, client)
    sink.encoder = Mock(**{"feed.side_effect": [b"one", b"", b"three"]})
    assert not sink.ready()
    client.at_once = written.append
    for number in range(3):
        assert sink.ready()
        sink.take((Delta(0, str(number)),))
    assert written == [b"one", b"three"], "an encoder may hold text back"
    assert account.note_next_token.call_count == 3
    account.texts = {}
    sink.encoder = Mock(**{"feed.return_value": b"four"})
    sink.take((Delta(0, "4"),))
    account.note_batch.assert_called_once_with((Delta(0, "4"),))
    client.at_once = None
    assert not sink.ready()
