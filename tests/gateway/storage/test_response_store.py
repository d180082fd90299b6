"""Stored responses: shared by all workers, separate by API key, limited in bytes."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.base import Record
from gateway.storage.response_store import KeyResponses, ResponseStore

pytestmark = pytest.mark.usefixtures("_closed_databases")

LIMIT = 1 << 20
LARGE = b"x" * 32_000  # 32 of them fit into the limit


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_every_worker_finds_a_stored_response(tmp_path: Path) -> None:
    one, other = (ResponseStore(LIMIT, tmp_path / "responses").of("a") for _ in range(2))
    assert other.get("resp_1") is None
    await one.keep(Record("resp_1", b"said"))
    assert other.get("resp_1") == b"said"
    await other.keep(Record("resp_1", b"said again"))
    assert one.get("resp_1") == b"said again"
    assert other.delete("resp_1")
    assert one.get("resp_1") is None
    assert not one.delete("resp_1")


async def test_another_key_finds_nothing(tmp_path: Path) -> None:
    store = ResponseStore(LIMIT, tmp_path)
    await store.of("a").keep(Record("resp_1", b"said"))
    for other in ("b", ""):
        assert store.of(other).get("resp_1") is None
        assert not store.of(other).delete("resp_1")
    assert store.of("a").get("resp_1") == b"said"


@pytest.mark.parametrize("id", ["../../etc/passwd", "", "\udcff", "a" * 10_000])
async def test_an_id_is_never_a_path(tmp_path: Path, id: str) -> None:
    records = ResponseStore(LIMIT, tmp_path / "responses").of("")
    assert records.get(id) is None
    await records.keep(Record(id, b"said"))
    assert records.get(id) == b"said"
    assert names(tmp_path) == ["responses"]


async def test_a_store_that_cannot_be_written_does_not_fail_the_answer(tmp_path: Path) -> None:
    (tmp_path / "responses").write_text("no folder")
    await ResponseStore(LIMIT, tmp_path / "responses").of("").keep(Record("resp_1", b"said"))


async def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    await ResponseStore(LIMIT, tmp_path / "responses").of("").keep(Record("resp_1", b"said"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "responses").iterdir()}
    assert modes["responses.sqlite3"] == 0o600
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "responses").stat().st_mode) == 0o700


async def test_the_least_recently_used_responses_are_deleted_when_the_store_is_full(tmp_path: Path) -> None:
    records, other = (ResponseStore(LIMIT, tmp_path).of("") for _ in range(2))
    for number in range(32):
        await records.keep(Record(str(number), LARGE))
    assert other.get("0") == LARGE  # and so the most recently used
    for number in range(16):
        await records.keep(Record(f"more {number}", LARGE))
    found = [str(number) for number in range(32) if records.get(str(number)) is not None]
    assert found == ["0", *map(str, range(17, 32))]
    assert all(records.get(f"more {number}") == LARGE for number in range(16))


@pytest.mark.slow
async def test_a_full_store_stays_within_its_limit_on_the_disk(tmp_path: Path) -> None:
    records = ResponseStore(LIMIT, tmp_path).of("")
    for number in range(3 * LIMIT // 4000):
        await records.keep(Record(str(number), b"x" * 4000))
    assert (tmp_path / "responses.sqlite3").stat().st_size < 1.5 * LIMIT


async def test_a_response_larger_than_its_share_of_the_limit_is_not_stored(tmp_path: Path) -> None:
    records = ResponseStore(LIMIT, tmp_path).of("")
    await records.keep(Record("large", b"x" * (LIMIT // 16 + 1)))
    assert records.get("large") is None


async def test_a_store_of_one_worker_leaves_nothing() -> None:
    store = ResponseStore(LIMIT)
    records = store.of("")
    assert records.get("resp_1") is None
    await records.keep(Record("resp_1", b"said"))
    assert records.get("resp_1") == b"said"
    store.close()
    assert records.get("resp_1") is None


async def test_the_event_loop_goes_on_while_another_worker_writes(tmp_path: Path) -> None:
    records = ResponseStore(LIMIT, tmp_path).of("")
    await records.keep(Record("resp_1", b"said"))
    other = sqlite3.connect(tmp_path / "responses.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert records.get("resp_1") == b"said", "a read does not wait"
    keeping = asyncio.create_task(records.keep(Record("resp_2", b"said too")))
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert not keeping.done()
    other.execute("COMMIT")
    await keeping
    assert records.get("resp_2") == b"said too"
    other.close()


async def test_a_use_that_could_not_be_written_counts_with_the_next_write(tmp_path: Path) -> None:
    records = ResponseStore(LIMIT, tmp_path).of("")
    for number in range(32):
        await records.keep(Record(str(number), LARGE))
    other = sqlite3.connect(tmp_path / "responses.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert records.get("0") == LARGE
    other.execute("COMMIT")
    other.close()
    await records.keep(Record("more", LARGE))
    assert records.get("0") == LARGE
    assert records.get("1") is None


WRITER = """
import asyncio, os, signal, sys
from pathlib import Path
from adapters.base import Record
from gateway.storage.response_store import ResponseStore

async def main():
    records = ResponseStore(1 << 24, Path(sys.argv[1])).of("")
    for number in range(200):
        await records.keep(Record(f"{sys.argv[2]}-{number}", b"x" * 5000))
    print("stored", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.slow
def test_what_killed_workers_have_stored_at_the_same_time_is_found(tmp_path: Path) -> None:
    """They also create the database at the same time."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "responses"), str(n)], stdout=subprocess.PIPE)
        for n in range(4)
    ]
    for writer in writers:
        output, _ = writer.communicate(timeout=60)
        assert output == b"stored\n"
    records: KeyResponses = ResponseStore(1 << 24, tmp_path / "responses").of("")
    assert all(records.get(f"{writer}-{number}") for writer in range(4) for number in range(200))
