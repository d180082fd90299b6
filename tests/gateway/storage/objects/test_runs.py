"""Answers in the background: exactly one of their worker and their clients ends them, whenever each comes."""

import pytest

from adapters.objects import RunState
from gateway.storage.objects.run_tasks import Run
from gateway.storage.objects.runs import KeyRuns, Leases
from gateway.storage.objects.store import ObjectStore

pytestmark = pytest.mark.usefixtures("_closed_databases")


async def runs() -> KeyRuns:
    store = ObjectStore(1_000_000, 60)
    leases = Leases(store.of("\0"))
    return KeyRuns(store.of("key"), leases)


async def test_an_answer_that_was_cancelled_before_it_starts_never_starts() -> None:
    kept = await runs()
    await kept.begin("a", None)
    assert await kept.find("a") == RunState("queued")
    assert await kept.take("a") == 0
    run = Run("a", kept, None)
    assert await run.is_taken()
    assert not await run.start()
    assert not await run.claim()
    await kept.close("a", 0, b"")
    assert await kept.find("a") == RunState("ended")
    assert not await run.start()


async def test_an_answer_is_queued_then_runs_then_has_ended() -> None:
    kept = await runs()
    await kept.begin("a", b"event\n\n")
    run = Run("a", kept, 1)
    assert await run.start()
    assert await kept.find("a") == RunState("running", streams=True)
    assert await run.claim()
    assert await kept.take("a") is None
    assert await run.write(b"last\n\n")
    assert await kept.find("a") == RunState("ended", streams=True)


async def test_an_answer_that_is_refused_ends_without_a_start() -> None:
    kept = await runs()
    await kept.begin("a", None)
    run = Run("a", kept, None)
    assert await run.claim()
    assert await run.write(b"")
    assert await kept.find("a") == RunState("ended")
