"""Records in a real server of PostgreSQL: the same as in SQLite, also while the server is away."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.usage.collector import Collector
from gateway.usage.database import open_database
from gateway.usage.errors import DatabaseError
from gateway.usage.query import Range, all_records, read_groups, read_records
from gateway.usage.spool import Spool, files
from tests.gateway.usage.records import RECORD, record
from tests.missing_tools import missing

pytestmark = pytest.mark.slow

ALWAYS = Range(0, 1 << 50)


class Server:
    """A server on a Unix socket in a folder, run by somebody who is not root, as it wants."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self._programs = folder, programs
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        self._run("initdb", "-D", str(folder / "data"), "-U", "gateway", "-A", "trust", "-N")
        self.url = f"postgresql://gateway@/postgres?host={folder}"

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses= -c fsync=off"
        self._run(
            "pg_ctl", "-D", str(self.folder / "data"), "-o", options, "-w", "-l", str(self.folder / "log"), "start"
        )

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *words: str) -> None:
        who = {"user": self._user.pw_uid, "group": self._user.pw_gid} if self._user is not None else {}
        done = subprocess.run(
            [self._programs / program, *words],
            check=False,
            stdout=subprocess.DEVNULL,  # the server keeps it open
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            **who,  # type: ignore[arg-type]
        )
        assert done.returncode == 0, program


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pytest.importorskip("psycopg", reason=missing("psycopg"))
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = installed[-1] if installed else Path(shutil.which("initdb") or "").parent
    if not (found / "initdb").exists():
        pytest.skip(missing("postgresql"))
    # Not in pytest's folder, which only its owner enters; and the path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    server = Server(folder, found)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def test_what_is_recorded_is_read_and_summed(server: Server, tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    for number in range(5):
        spool.append(record(number, key="a" if number < 2 else "b", user=None if number else "me", streamed=True))
    spool.append(record(5, key=None, outcome="timeout", prompt_tokens=None, completion_tokens=None, cost=0))
    spool.close()
    collector = Collector(tmp_path, server.url)
    assert collector.collect(wait=True)
    assert collector.collect(wait=True)
    assert files(tmp_path) == []
    database = open_database(server.url)
    groups, last = read_groups(database, ALWAYS, ("key", "day"), 10)
    assert [(each.by["key"], each.requests, each.succeeded, each.cost) for each in groups] == [
        (None, 1, 0, 0),
        ("a", 2, 2, 2 * RECORD.cost),
        ("b", 3, 3, 3 * RECORD.cost),
    ]
    assert last is None
    paged = []
    after = None
    while True:
        page, after = read_groups(database, ALWAYS, ("key", "hour"), 1, after)
        paged += page
        if after is None:
            break
    assert [each.requests for each in paged] == [1, 2, 3]
    assert [each["request_id"] for each in all_records(database, ALWAYS)] == [
        f"r{number}" for number in range(5, -1, -1)
    ]
    first, after = read_records(database, Range(0, 1 << 50, {"key": ("b",)}), 2)
    rest, _ = read_records(database, Range(0, 1 << 50, {"key": ("b",)}), 2, after)
    assert [each["request_id"] for each in first + rest] == ["r4", "r3", "r2"]
    assert collector.delete_before(RECORD.time_ms / 1000 + 4) == 4
    assert read_groups(database, ALWAYS, (), 1)[0][0].requests == 2
    database.close()
    collector.close()


def test_records_wait_while_the_server_is_away(server: Server, tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    collector = Collector(tmp_path, server.url)
    spool.append(record(100, endpoint="waiting"))
    assert collector.collect(wait=True)
    server.stop()
    spool.append(record(101, endpoint="waiting"))
    for _ in range(2):
        with pytest.raises(DatabaseError):
            collector.collect(wait=True)
    spool.close()
    server.start()
    assert collector.collect(wait=True)
    database = open_database(server.url)
    (group,), _ = read_groups(database, Range(0, 1 << 50, {"endpoint": ("waiting",)}), ("endpoint",), 10)
    assert group.requests == 2
    database.close()
    collector.close()
