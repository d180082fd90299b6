"""Cost of the stores that workers share, in mapped memory, files and SQLite: `python -m benchmarks.stores`.

Prints microseconds of one operation: mean, median, 99th percentile and maximum, for one writer and for three processes
that write at the same time. `paced` writers pause for 2 ms between operations, as workers do that answer requests.
SQLite runs in WAL mode, `synchronous` as named. Decision 15 quotes these figures.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from gateway.experiments.counters_file import CountersFile, Layout
from gateway.experiments.feedback_ring import Answered, FeedbackRing, name_of
from gateway.storage.response_store import ResponseStore

CALLS = 2000
METRICS = 8
BODY = b"x" * 8000
Operation = Callable[[int], object]


@dataclass
class Worker:
    """One process at the shared folder."""

    folder: Path
    prefix: str

    def database(self, synchronous: str) -> sqlite3.Connection:
        connection = sqlite3.connect(self.folder / "benchmark.sqlite3", timeout=5, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        for table in (
            "counter (metric INT, bucket INT, n REAL, s REAL, PRIMARY KEY (metric, bucket)) WITHOUT ROWID",
            "answered (id TEXT PRIMARY KEY, experiment INT, arm INT, bucket INT) WITHOUT ROWID",
            "response (name BLOB PRIMARY KEY, data BLOB)",
        ):
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        return connection


def counters_mapped(worker: Worker) -> Operation:
    counters = CountersFile(Layout(2, METRICS), worker.folder / "counters", int(worker.prefix, 16))

    def count(number: int) -> None:
        counters.add(0, number * 7 % 512, [(metric, 1.0) for metric in range(METRICS)])

    return count


def counters_sqlite(worker: Worker, synchronous: str) -> Operation:
    connection = worker.database(synchronous)
    add = "INSERT INTO counter VALUES (?, ?, 1, 1) ON CONFLICT DO UPDATE SET n = n + 1, s = s + excluded.s"

    def count(number: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(add, [(metric, number * 7 % 512) for metric in range(METRICS)])
        connection.execute("COMMIT")

    return count


def answered_mapped(worker: Worker) -> Operation:
    ring = FeedbackRing(worker.folder / "answers", int(worker.prefix, 16))
    return lambda number: ring.note(name_of(f"{worker.prefix}{number:08x}", b""), Answered(1, 2, 3))


def answered_sqlite(worker: Worker, synchronous: str) -> Operation:
    connection = worker.database(synchronous)
    insert = "INSERT INTO answered VALUES (?, 1, 2, 3)"
    return lambda number: connection.execute(insert, (f"{worker.prefix}{number:08x}",))


def state_stat(worker: Worker) -> Operation:
    path = worker.folder / "state.json"
    path.touch()
    return lambda _: os.stat(path).st_mtime_ns


def state_sqlite(worker: Worker, synchronous: str) -> Operation:
    connection = worker.database(synchronous)
    return lambda _: connection.execute("PRAGMA data_version").fetchone()


def response_file(worker: Worker) -> Operation:
    def store(number: int) -> None:
        with tempfile.NamedTemporaryFile(dir=worker.folder, prefix=".", delete=False) as file:
            file.write(BODY)
        Path(file.name).replace(worker.folder / f"{worker.prefix}-{number}")

    return store


def response_sqlite(worker: Worker, synchronous: str) -> Operation:
    connection = worker.database(synchronous)
    insert = "INSERT INTO response VALUES (?, ?)"
    return lambda number: connection.execute(insert, (f"{worker.prefix}{number:08x}".encode(), BODY))


def response_store(worker: Worker) -> Operation:
    """The product's, with its limit, and with its wait for other writers in a thread."""
    store = ResponseStore(1 << 26, worker.folder / "responses")
    return lambda number: store.put(f"{worker.prefix}{number:08x}".encode(), BODY)


def response_store_get(worker: Worker) -> Operation:
    store = ResponseStore(1 << 26, worker.folder / "responses")

    async def get(number: int) -> None:
        if number == 0:
            await store.put(worker.prefix.encode(), BODY)
        store.get(worker.prefix.encode())

    return get


CASES: dict[str, Callable[[Worker], Operation]] = {
    "counters of a request, mapped": counters_mapped,
    "counters of a request, SQLite OFF": lambda worker: counters_sqlite(worker, "OFF"),
    "counters of a request, SQLite NORMAL": lambda worker: counters_sqlite(worker, "NORMAL"),
    "who answered a request, mapped": answered_mapped,
    "who answered a request, SQLite OFF": lambda worker: answered_sqlite(worker, "OFF"),
    "who answered a request, SQLite NORMAL": lambda worker: answered_sqlite(worker, "NORMAL"),
    "has the state changed, stat": state_stat,
    "has the state changed, SQLite": lambda worker: state_sqlite(worker, "NORMAL"),
    "store a response, file": response_file,
    "store a response, SQLite OFF": lambda worker: response_sqlite(worker, "OFF"),
    "store a response, SQLite NORMAL": lambda worker: response_sqlite(worker, "NORMAL"),
    "store a response, ResponseStore": response_store,
    "read a response, ResponseStore": response_store_get,
}
RUNS = {"1": (1, 0.0), "3": (3, 0.0), "3 paced": (3, 0.002)}


def main() -> None:
    """Run and print."""
    print(f"{'':40}{'writers':>9}{'mean':>9}{'median':>9}{'p99':>9}{'max':>9}   µs")
    for name in CASES:
        for label, (writers, pause) in RUNS.items():
            times = sorted(measure(name, writers, pause))
            figures = (sum(times) / len(times), times[len(times) // 2], times[len(times) * 99 // 100], times[-1])
            print(f"{name:40}{label:>9}" + "".join(f"{seconds * 1e6:9.1f}" for seconds in figures), flush=True)


def measure(name: str, writers: int, pause: float) -> list[float]:
    """The seconds of every call of all processes."""
    context = get_context("fork")
    results: SimpleQueue[list[float]] = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=child, args=(name, Worker(Path(folder), f"{number:016x}"), pause, results))
            for number in range(writers)
        ]
        for process in processes:
            process.start()
        times = [seconds for _ in processes for seconds in results.get()]
        for process in processes:
            process.join()
    return times


def child(name: str, worker: Worker, pause: float, results: SimpleQueue[list[float]]) -> None:
    results.put(asyncio.run(run(CASES[name](worker), pause)))


async def run(operation: Operation, pause: float) -> list[float]:
    times: list[float] = []
    for number in range(CALLS // 4 if pause else CALLS):
        began = time.perf_counter()
        running = operation(number)
        if isinstance(running, Coroutine):
            await running
        times.append(time.perf_counter() - began)
        if pause:
            await asyncio.sleep(pause)
    return times


if __name__ == "__main__":
    main()
