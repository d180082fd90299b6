from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from adapters.objects import Entry, Span
from gateway.storage.objects.store import KeyObjects, ObjectStore, TooLarge

pytestmark = pytest.mark.usefixtures("_closed_databases")

AGE = 100.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def entries(*ids: str) -> tuple[Entry, ...]:
    return tuple(Entry(id, f"data of {id}".encode()) for id in ids)


def ids(page: object) -> list[str]:
    return [entry.id for entry in page.entries]  # type: ignore[attr-defined]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(1 << 20, AGE, tmp_path / "objects.sqlite3", Clock())


@pytest.fixture
def objects(store: ObjectStore) -> KeyObjects:
    return store.of("a")


async def test_an_object_is_found_by_its_key_kind_and_id_alone(store: ObjectStore, objects: KeyObjects) -> None:
    assert await objects.put("talk", "1", b"data", entries("x"))
    assert await objects.get("talk", "1") == b"data"
    assert await objects.entry("talk", "1", "x") == b"data of x"
    for other in (store.of("b"), store.of("")):
        assert await other.get("talk", "1") is None
        assert await other.entries("talk", "1", Span(9)) is None
        assert await other.entry("talk", "1", "x") is None
        assert not await other.append("talk", "1", entries("y"))
        assert not await other.drop("talk", "1", "x")
        assert not await other.delete("talk", "1")
        assert ids(await other.page("talk", Span(9))) == []
    assert await objects.get("chat", "1") is None
    assert await store.of("a\0talk").get("", "1") is None


async def test_pages_go_both_ways_and_say_whether_more_follow(objects: KeyObjects) -> None:
    await objects.put("talk", "1", b"", entries("a", "b"))
    assert await objects.append("talk", "1", entries("c", "d", "e"))
    first = await objects.entries("talk", "1", Span(2))
    assert first is not None
    assert (ids(first), first.more) == (["a", "b"], True)
    last = await objects.entries("talk", "1", Span(3, "b"))
    assert last is not None
    assert (ids(last), last.more) == (["c", "d", "e"], False)
    assert ids(await objects.entries("talk", "1", Span(2, "d", newest_first=True))) == ["c", "b"]
    assert ids(await objects.entries("talk", "1", Span(2, "lost"))) == ["a", "b"]
    assert await objects.drop("talk", "1", "b")
    assert not await objects.drop("talk", "1", "b")
    assert ids(await objects.entries("talk", "1", Span(9))) == ["a", "c", "d", "e"]


async def test_objects_of_a_kind_are_listed_as_they_were_made(objects: KeyObjects) -> None:
    for id in ("1", "2", "3"):
        await objects.put("talk", id, id.encode())
    await objects.append("talk", "1", data=b"new")
    page = await objects.page("talk", Span(2))
    assert ([(each.id, each.data) for each in page.entries], page.more) == ([("1", b"new"), ("2", b"2")], True)
    assert ids(await objects.page("talk", Span(9, "2"))) == ["3"]
    assert ids(await objects.page("talk", Span(9, newest_first=True))) == ["3", "2", "1"]


async def test_an_append_can_depend_on_the_data(objects: KeyObjects) -> None:
    await objects.put("run", "1", b"running")
    assert await objects.append("run", "1", entries("x"), data=b"ended", was=b"running")
    assert not await objects.append("run", "1", entries("y"), was=b"running")
    assert ids(await objects.entries("run", "1", Span(9))) == ["x"]


async def test_of_racing_writers_each_entry_is_kept_once(store: ObjectStore, tmp_path: Path) -> None:
    others = [ObjectStore(1 << 20, AGE, tmp_path / "objects.sqlite3", store.now) for _ in range(3)]
    await store.of("a").put("talk", "1", b"")
    tasks = [each.of("a").append("talk", "1", entries(f"{n}.{i}")) for i in range(20) for n, each in enumerate(others)]
    assert all(await asyncio.gather(*tasks))
    page = await store.of("a").entries("talk", "1", Span(100))
    assert page is not None
    assert len(set(ids(page))) == 60
    for each in others:
        each.close()


async def test_what_exceeds_the_limit_goes_oldest_first_and_whole(store: ObjectStore, objects: KeyObjects) -> None:
    large = Entry("x", b"x" * (store.largest - 1024))
    for id in map(str, range(17)):
        assert await objects.put("talk", id, b"", [large])
        await objects.append("talk", "0")  # changed last
    assert await objects.get("talk", "1") is None
    assert await objects.entry("talk", "1", "x") is None
    assert await objects.get("talk", "0") == b""
    assert await objects.entry("talk", "0", "x") == large.data
    assert not await objects.put("talk", "large", b"x" * store.largest)
    with pytest.raises(TooLarge):
        await objects.append("talk", "0", [large])
    assert len(store.read("SELECT 1 FROM entry", ())) == len(store.read("SELECT 1 FROM object", ()))
    assert store.read("SELECT bytes FROM total", ()) == store.read("SELECT sum(bytes) FROM object", ())


async def test_the_total_stays_right(store: ObjectStore, objects: KeyObjects) -> None:
    await objects.put("talk", "1", b"data", entries("a", "b"))
    await objects.put("talk", "1", b"other", entries("a", "b", "c"))
    await objects.append("talk", "1", entries("d"), data=b"longer than before")
    await objects.drop("talk", "1", "b")
    assert store.read("SELECT bytes FROM total", ()) == store.read("SELECT bytes FROM object", ())
    await objects.delete("talk", "1")
    assert store.read("SELECT bytes FROM total", ()) == [(0,)]


async def test_an_object_expires(store: ObjectStore, objects: KeyObjects) -> None:
    clock = store.now
    assert isinstance(clock, Clock)
    await objects.put("talk", "old", b"", entries("x"))
    await objects.put("talk", "short", b"", seconds=1.0)
    clock.now += 2
    assert await objects.get("talk", "short") is None
    await objects.put("talk", "kept", b"")
    clock.now += AGE - 1
    assert await objects.get("talk", "old") is None
    assert ids(await objects.page("talk", Span(9))) == ["kept"]
    await objects.append("talk", "kept")
    assert store.read("SELECT id FROM object", ()) == [("kept",)]
    assert store.read("SELECT 1 FROM entry", ()) == []


async def test_a_store_without_a_file_is_its_own() -> None:
    one, other = ObjectStore(1 << 20, AGE), ObjectStore(1 << 20, AGE)
    await one.of("").put("talk", "1", b"data")
    assert await other.of("").get("talk", "1") is None
    one.close()
    other.close()
