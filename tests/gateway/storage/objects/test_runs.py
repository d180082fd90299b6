"""Answers in the background: exactly one of their worker and their clients ends them, whenever each comes."""

import pytest

from adapters.objects import RunState
from gateway.storage.objects.run_tasks import Run
from gateway.storage.objects.runs import LEASE, KeyRuns, Leases
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


async def test_an_answer_that_is_made_is_not_deleted_for_others_until_its_worker_is_gone() -> None:
    clock = [1000.0]
    store = ObjectStore(16 * 4096, 60, now=lambda: clock[0])
    leases, others = Leases(store.of("\0")), store.of("other key")
    kept = KeyRuns(store.of("key"), leases)

    async def fill() -> None:
        for number in range(40):
            assert await others.put("talk", str(number), b"x" * 3000)
            assert await others.get("talk", str(number)) is not None

    await kept.begin("queued", None)
    await kept.begin("running", b"event\n\n")
    assert await kept.start("running")
    await kept.begin("ending", None)
    await kept.take("ending")
    await kept.begin("ended", None)
    await kept.take("ended")
    await kept.close("ended", 0, b"")
    await fill()
    found = [await kept.find(id) for id in ("queued", "running", "ending", "ended")]
    assert found == [RunState("queued"), RunState("running", streams=True), RunState("running"), None]
    clock[0] += LEASE + 1  # nobody has renewed the lease: the worker is gone
    await fill()
    assert [await kept.find(id) for id in ("queued", "running", "ending")] == [None] * 3


async def test_answers_that_are_made_may_take_more_than_the_limit() -> None:
    store = ObjectStore(16 * 1024, 60)
    kept, talks = KeyRuns(store.of("key"), Leases(store.of("\0"))), store.of("")
    for number in range(40):
        await kept.begin(str(number), b"x" * 400)
    assert await talks.put("talk", "1", b"latest")
    assert await talks.get("talk", "1") == b"latest"
    assert [await kept.find(str(number)) for number in range(40)] == [RunState("queued", streams=True)] * 40


async def test_an_answer_without_events_does_not_expire_while_it_is_made() -> None:
    clock = [1000.0]
    store = ObjectStore(1_000_000, 60, now=lambda: clock[0])
    leases = Leases(store.of("\0"))
    run = Run("a", KeyRuns(store.of("key"), leases), None)
    await KeyRuns(store.of("key"), leases).begin("a", None)
    for _ in range(20):
        clock[0] += LEASE / 2
        await leases.renew()
        await run.renew()
    assert await run.start()
