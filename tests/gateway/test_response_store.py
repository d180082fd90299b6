"""What is kept for a while: shared by workers, nobody else's, and never more than there is room for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapters.base import Record
from gateway.response_store import RecordStore

ROOM = 1 << 20


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


def test_every_worker_knows_it(tmp_path: Path) -> None:
    one, other = (RecordStore(ROOM, tmp_path / "records").of(key("a")) for _ in range(2))
    one.keep(Record("resp_1", b"said"))
    assert other.get("resp_1") == b"said"
    assert other.delete("resp_1")
    assert one.get("resp_1") is None
    assert not one.delete("resp_1")


def test_no_other_key_does(tmp_path: Path) -> None:
    store = RecordStore(ROOM, tmp_path)
    store.of(key("a")).keep(Record("resp_1", b"said"))
    for headers in (key("b"), {}, {"x-api-key": "b"}):
        assert store.of(headers).get("resp_1") is None
        assert not store.of(headers).delete("resp_1")
    assert store.of({"x-api-key": "a"}).get("resp_1") == b"said"


@pytest.mark.parametrize("id", ["../../etc/passwd", "", "\udcff", "a" * 10_000])
def test_an_id_is_no_path(tmp_path: Path, id: str) -> None:
    records = RecordStore(ROOM, tmp_path / "records").of({})
    assert records.get(id) is None
    records.keep(Record(id, b"said"))
    assert records.get(id) == b"said"
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_where_nothing_can_be_kept_the_answer_is_none_the_worse(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("no folder")
    RecordStore(ROOM, tmp_path / "records").of({}).keep(Record("resp_1", b"said"))


def test_what_was_not_asked_for_longest_goes(tmp_path: Path) -> None:
    records = RecordStore(ROOM, tmp_path).of({})
    for place in range(ROOM // 4096):
        records.keep(Record(str(place), b"x"))
        for file in tmp_path.iterdir():  # a second older than the next
            os.utime(file, (stat := file.stat()) and (stat.st_atime - 1, stat.st_mtime - 1))
    assert records.get("0") == b"x"  # and so the youngest
    for place in range(ROOM // 4096 // 2):
        records.keep(Record(f"more {place}", b"x"))
    assert records.get("0") == b"x"
    assert records.get("1") is None
    assert sum(1 for _ in tmp_path.iterdir()) <= ROOM // 4096 * 17 // 16 + 1


def test_what_would_take_too_much_room_is_not_kept(tmp_path: Path) -> None:
    records = RecordStore(ROOM, tmp_path).of({})
    records.keep(Record("large", b"x" * (ROOM // 16 + 1)))
    assert records.get("large") is None


def test_a_worker_alone_leaves_nothing() -> None:
    store = RecordStore(ROOM)
    records = store.of({})
    assert records.get("resp_1") is None
    records.keep(Record("resp_1", b"said"))
    assert records.get("resp_1") == b"said"
    store.close()
    assert records.get("resp_1") is None
