"""Lines stand back behind clients, of this worker and of others, and are asked again where a client would ask again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backends.scripted import ScriptedBackend
from gateway.http.batches import pace as module
from gateway.http.batches.clients import Clients
from gateway.http.batches.pace import Pace, Timed
from gateway.service import Service
from schemas.errors import BackendUnavailable
from tests.gateway.http.batches.serving import batch_of, batching, line, read


def service() -> Any:
    return SimpleNamespace(running=0, begun=0)


async def most_at_once(pace: Pace, lines: int = 6) -> int:
    """How many of some lines run at the same time."""
    running = most = 0

    async def one() -> None:
        nonlocal running, most
        async with pace.line():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            pace.note(1e-6)

    await asyncio.gather(*(one() for _ in range(lines)))
    return most


async def test_a_client_leaves_room_for_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.001)
    ours = service()
    pace = Pace(Clients(cast(Service, ours), tmp_path / "clients"), at_once=3, beside=1)
    assert pace.delay == 0
    assert await most_at_once(pace) == 3
    ours.running = 1
    assert pace.delay > 0
    assert await most_at_once(pace) == 1
    ours.running, ours.begun = 0, 7  # a request that came and went between two looks
    assert await most_at_once(pace, 2) == 1


async def test_clients_of_other_workers_count(tmp_path: Path) -> None:
    ours, other = service(), service()
    mine, theirs = (Clients(cast(Service, each), tmp_path / "clients") for each in (ours, other))
    watching = asyncio.create_task(theirs.watch())
    while not (tmp_path / "clients").exists():  # noqa: ASYNC110 - made by the task
        await asyncio.sleep(0.001)
    os.utime(tmp_path / "clients", (0, 0))
    assert not mine.present
    other.running = 1
    while not mine.present:  # noqa: ASYNC110 - what is tested
        await asyncio.sleep(0.01)
    watching.cancel()


async def test_waiting_for_a_processor_is_no_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, now, stat = service(), 100.0, tmp_path / "schedstat"
    monkeypatch.setattr(module, "_SCHEDSTAT", stat)
    monkeypatch.setattr(module, "monotonic", lambda: now)
    pace = Pace(Clients(cast(Service, ours), tmp_path / "clients"), at_once=3, beside=1)
    ours.running = 1
    pace.note(0.01)  # the pause is shorter than 5 s
    stat.write_text("7 5000000000 3\n")
    now = 105.0
    assert not pace._may_begin()
    now = 110.0
    assert pace._may_begin()
    stat.unlink()  # another system
    assert pace._may_begin()


async def test_the_time_of_others_is_not_counted() -> None:
    async def waits() -> int:
        await asyncio.sleep(0.05)
        return sum(range(20_000))

    timed = Timed(waits())
    assert await timed == sum(range(20_000))
    assert 0 < timed.spent < 0.05


async def test_a_cancelled_line_is_cancelled() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def outer() -> None:
        await Timed(waits())

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.slow
async def test_a_model_that_is_away_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.batches.run._FIRST_DELAY", 0.01)
    monkeypatch.setattr("gateway.http.batches.run._ATTEMPTS", 3)
    asked: list[str] = []
    generate = ScriptedBackend.generate

    def away(self: ScriptedBackend, request: Any) -> Any:
        text = request.prompts[0].messages[0].content
        asked.append(text)
        if asked.count(text) < (2 if text == "I am a" else 9):
            raise BackendUnavailable("Away.")
        return generate(self, request)

    monkeypatch.setattr(ScriptedBackend, "generate", away)
    async with batching(tmp_path) as client:
        batch = await batch_of(client, [line("a"), line("b")])
        assert (asked.count("I am a"), asked.count("I am b")) == (2, 3)
        assert set(await read(client, batch["output_file_id"])) == {"a"}
        assert (await read(client, batch["error_file_id"]))["b"]["response"]["status_code"] == 503
