"""Who counts as hung: a process whose loop does not turn, never one that is slow, nor one whose supervisor paused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gateway.process.heartbeat import Heartbeat, beat


@pytest.fixture
def heartbeat() -> Iterator[Heartbeat]:
    made = Heartbeat(hung_after=2.0)
    yield made
    made.close()


def test_a_silent_process_is_hung(heartbeat: Heartbeat) -> None:
    writer = heartbeat.pipe(0.0)
    os.write(writer, b".")
    looks = {now / 2: heartbeat.is_hung(now / 2) for now in range(1, 8)}
    assert [now for now, hung in looks.items() if hung] == [3.0, 3.5], "the beat was seen at 0.5"
    os.close(writer)


def test_a_slow_process_is_not_hung(heartbeat: Heartbeat) -> None:
    writer = heartbeat.pipe(0.0)
    for now in range(1, 40):
        if now % 2:
            os.write(writer, b".")
        assert not heartbeat.is_hung(float(now))
    os.close(writer)


def test_a_pause_of_the_supervisor_is_not_silence(heartbeat: Heartbeat) -> None:
    writer = heartbeat.pipe(0.0)
    os.write(writer, b".")
    assert not heartbeat.is_hung(0.5)
    assert not heartbeat.is_hung(1_000_000.0)
    os.close(writer)


def test_a_process_that_starts_gets_longer(heartbeat: Heartbeat) -> None:
    writer = heartbeat.pipe(0.0)
    hung = [now for now in range(1, 25) if heartbeat.is_hung(float(now))]
    assert hung[0] == 21
    os.close(writer)


def test_the_next_process_begins_anew(heartbeat: Heartbeat) -> None:
    os.close(heartbeat.pipe(0.0))
    assert any(heartbeat.is_hung(float(now)) for now in range(30)), "its end of the pipe is closed, too"
    os.close(heartbeat.pipe(100.0))
    assert not heartbeat.is_hung(100.5)


async def test_a_loop_beats_even_if_nobody_reads(heartbeat: Heartbeat) -> None:
    writer = heartbeat.pipe(0.0)
    loop = asyncio.get_running_loop()
    with suppress(BlockingIOError):
        while True:  # until the pipe is full
            os.write(writer, b"." * 4096)
    beat(loop, writer)
    assert not heartbeat.is_hung(1.0)
    heartbeat.close()
    beat(loop, writer)
    os.close(writer)
    for handle in list(loop._scheduled):  # type: ignore[attr-defined]
        handle.cancel()
