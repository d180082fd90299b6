"""The store: one worker has a batch at a time, and each line is marked once, whatever workers believe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from adapters.batches import Line, NewBatch, Result
from gateway.batches import store as module
from gateway.batches.database import Database
from gateway.batches.files import FileStore
from gateway.batches.store import BatchStore, LeaseLost
from schemas.errors import InvalidRequest

LINES = tuple(Line(f"l{number}", b"{}") for number in range(3))
ASKED = NewBatch(endpoint="/v1/messages", lines=LINES)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "batches.sqlite3")
    yield database
    database.close()


@pytest.fixture
def store(database: Database) -> BatchStore:
    return BatchStore(database, max_open=16, kept=60)


async def made(store: BatchStore, id: str, owner: str = "") -> None:
    await store.create(owner, "anthropic", id, ASKED)


def answer(number: int, body: bytes = b"{}") -> Result:
    return Result(number, f"l{number - 1}", 200, "r", body)


async def test_one_worker_has_a_batch(store: BatchStore) -> None:
    await made(store, "b")
    claim = await store.claim("one")
    assert claim is not None
    assert await store.claim("two") is None
    await store.release(claim)
    assert await store.claim("two") is not None
    with pytest.raises(LeaseLost):
        await store.renew(claim)
    await store.release(claim)  # changes nothing: it is another's
    assert await store.claim("three") is None


async def test_a_worker_that_was_taken_for_dead_writes_nothing(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEASE", -1.0)
    await made(store, "b")
    old = await store.claim("old")
    assert old is not None
    await store.answer(old, [answer(1, b'"old"')])
    new = await store.claim("new")
    assert new is not None
    assert new.batch.completed == 1
    assert [number for number, _ in await store.pending(new, 0, 10)] == [2, 3]
    await store.answer(new, [answer(2, b'"new"')])
    for late in (store.answer(old, [answer(2, b'"late"')]), store.end(old, "completed"), store.clear(old)):
        with pytest.raises(LeaseLost):
            await late
    results = await store.results(new.batch, 0, 10)
    assert [(each.status, each.body) for each in results] == [(200, b'"old"'), (200, b'"new"'), (0, b"")]


async def test_a_line_is_answered_once(store: BatchStore) -> None:
    await made(store, "b")
    claim = await store.claim("one")
    assert claim is not None
    await store.answer(claim, [answer(1, b"1"), replace(answer(1, b"2"), status=500)])
    await store.answer(claim, [replace(answer(1, b"3"), status=500), replace(answer(2), status=404)])
    batch = await store.renew(claim)
    assert (batch.completed, batch.failed) == (1, 1)
    assert (await store.results(batch, 0, 1))[0].body == b"1"


async def test_keys_take_turns(store: BatchStore) -> None:
    for id, owner in (("a1", "aa"), ("a2", "aa"), ("b1", "bb"), ("a3", "aa")):
        await made(store, id, owner)
    order = [claim.batch.id if (claim := await store.claim("w")) is not None else None for _ in range(5)]
    assert order == ["a1", "b1", "a2", "a3", None]


async def test_what_has_expired_is_removed(
    store: BatchStore, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FileStore(database, tmp_path / "files", most=100_000)
    kept, old, foreign = files.new(), files.new(), files.new()
    for path in (kept, old, foreign):
        path.write_bytes(b"x")
    await files.add("", kept, "kept", "batch", None)
    await files.add("", old, "old", "batch", -1)
    assert await files.get("", old.name) is None
    await made(store, "b")
    claim = await store.claim("one")
    assert claim is not None
    await store.end(claim, "completed")
    monkeypatch.setattr("gateway.batches.files._ABANDONED", -1.0)
    await files.sweep()
    assert [path.name for path in (tmp_path / "files").iterdir()] == [kept.name]
    await store.sweep()
    assert await store.get("", "anthropic", "b") is not None
    monkeypatch.setattr(module.time, "time", lambda: 1e11)
    await store.sweep()
    assert await store.get("", "anthropic", "b") is None


async def test_the_bytes_of_an_owner_are_bounded(database: Database, tmp_path: Path) -> None:
    files = FileStore(database, tmp_path / "files", most=10_000)
    for owner in ("one", "one", "two"):
        path = files.new()
        path.write_bytes(b"x")
        await files.add(owner, path, "x", "batch", None)
    path = files.new()
    path.write_bytes(b"x")
    assert await files.room("one") < 0 < await files.room("two")
    with pytest.raises(InvalidRequest):
        await files.add("one", path, "x", "batch", None)
