"""The soak's accounts: what clients, logs, metrics and records say of the requests must agree."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.soak.clients import Seen
from benchmarks.soak.server import total


def judge(seen: Seen, lives: list[Path], metrics: str, kills: int, usage: Path) -> list[str]:
    """Compare what clients, logs, metrics and records say, and print the figures; what is wrong.

    Args:
        seen: what the clients saw.
        lives: the log of each start of the server.
        metrics: of the last start, whose requests have all ended.
        kills: of processes that log requests.
        usage: the database of records, after the last stop.
    """
    lines = [_finished(life) for life in lives]
    logged = [[line["request_id"] for line in life] for life in lines]
    ids = Counter(id for life in logged for id in life)
    counted, refused = total(metrics, "gw_requests_total"), total(metrics, "gw_refused_total")
    print(f"requests: {seen.sent} sent, {len(seen.ids)} with an id, {seen.unnamed} without, ", end="")
    print(f"{seen.count('not connected')} not connected; {len(ids)} logged")
    print(f"since the last start: {len(logged[-1])} logged, {counted:.0f} counted, {refused:.0f} refused at the edge")
    wrong = [f"{how}: {number} requests" for how in ("HUNG", "FALSE END") if (number := seen.count(how))]
    if twice := sum(number > 1 for number in ids.values()):
        wrong.append(f"{twice} requests are logged twice")
    if counted != len(logged[-1]):
        wrong.append(f"{counted:.0f} requests are counted since the last start, {len(logged[-1])} are logged")
    # A worker that is killed cannot log what it was answering: those clients saw their connection end, or had left
    # before, or one at a time had just read the last byte.
    lost = Counter(how for id, how in seen.ids.items() if id not in ids and not how.endswith("at the edge"))
    explained = lost.pop("connection ended", 0) + lost.pop("left", 0)
    print(f"not logged, since their worker was killed: {explained}; answered just before: {lost.total()}")
    if lost.total() > kills:
        wrong.append(f"requests with an id have no line: {dict(lost)}")
    if (unknown := len(ids.keys() - seen.ids.keys())) > seen.unnamed:
        wrong.append(f"{unknown} lines are of requests that nobody sent")
    return wrong + _judge_records(usage, {line["request_id"] for life in lines for line in life if line["served"]})


def _judge_records(usage: Path, served: set[str]) -> list[str]:
    """Compare the records with the log's lines of requests that reached a served entity; what is wrong."""
    with closing(sqlite3.connect(usage)) as database:
        records = Counter(id for (id,) in database.execute("SELECT request_id FROM usage_record"))
    # A record is kept just before its line is written: a worker that is killed in between writes no line. Requests that
    # a limit or a filter refused have a record, and no served entity.
    missing, twice = served - records.keys(), sum(number > 1 for number in records.values())
    print(f"records: {len(records)}; lines of served requests: {len(served)}, {len(missing)} of them without a record")
    wrong = [f"{twice} requests have two records"] if twice else []
    if missing:
        wrong.append(f"{len(missing)} requests have a line and no record")
    return wrong


def _finished(life: Path) -> list[dict[str, Any]]:
    lines = [msgspec.json.decode(line) for line in life.read_bytes().splitlines() if line.startswith(b"{")]
    return [line for line in lines if line.get("event") == "request.finished"]
