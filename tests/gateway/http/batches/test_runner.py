"""When a worker looks for batches."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.config import BatchesSection
from gateway.http.batches import runner as module
from gateway.http.batches.runner import BatchRunner


async def test_a_batch_that_comes_during_a_look_is_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK", 3600.0)
    looks = 0

    async def nothing() -> None: ...

    async def claim(_: str) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            runner.wake()  # another one has just been made, and this look is too early for it

    stores: Any = SimpleNamespace(claim=claim, sweep=nothing)
    given: Any = SimpleNamespace(draining=False)
    runner = BatchRunner(given, BatchesSection(), given, given, (stores, stores))
    looking = asyncio.create_task(runner._look())
    async with asyncio.timeout(60):
        while looks < 2:  # noqa: ASYNC110 - what is tested
            await asyncio.sleep(0.001)
    looking.cancel()
    await asyncio.wait([looking])
