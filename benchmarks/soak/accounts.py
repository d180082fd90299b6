"""The soak's accounts: what clients, logs and metrics say of the requests must agree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from benchmarks.soak.clients import Seen
from benchmarks.soak.server import total


def judge(seen: Seen, lives: list[Path], metrics: str, kills: int) -> list[str]:
    """Compare what clients, logs and metrics say, and print the figures; what is wrong.

    Args:
        seen: what the clients saw.
        lives: the log of each start of the server.
        metrics: of the last start, whose requests have all ended.
        kills: of processes that log requests.
    """
    logged = [_finished(life) for life in lives]
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
    return wrong


def _finished(life: Path) -> list[str]:
    lines = [msgspec.json.decode(line) for line in life.read_bytes().splitlines() if line.startswith(b"{")]
    return [line["request_id"] for line in lines if line.get("event") == "request.finished"]
