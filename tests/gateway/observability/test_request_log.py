"""The last requests of all workers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.observability import request_log
from gateway.observability.request_log import LoggedRequest, RequestLog


def entry(number: int, message: str = "") -> LoggedRequest:
    answer = ("ok", None, message, "stop", 0.1, 0.2, 0.3, 0.4, 1, None, 2, None, None, None, False, {"seed": number})
    return LoggedRequest(
        str(number), 1.5, None, None, "chat", "a", "s", None, "openai", "chat", "generate", True, 200, *answer
    )


def ids(entries: list[bytes]) -> list[str]:
    return [msgspec.json.decode(each, type=LoggedRequest).id for each in entries]


@pytest.mark.parametrize("is_shared", [False, True])
def test_entries_are_read_once_and_the_ring_keeps_the_last(
    is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "_SLOTS", 4)
    log = RequestLog(tmp_path / "requests" if is_shared else None, "one")
    found, position = log.since({})
    assert found == []
    for number in range(6):
        log.add(entry(number))
    found, position = log.since(position)
    assert ids(found) == ["2", "3", "4", "5"]
    assert ids(log.since({}, 3)[0]) == ["3", "4", "5"]
    assert log.since(position)[0] == []
    log.add(entry(6))
    assert ids(log.since(position)[0]) == ["6"]


def test_workers_read_each_others_entries_and_a_slot_is_continued(tmp_path: Path) -> None:
    one, two = RequestLog(tmp_path, "one"), RequestLog(tmp_path, "two")
    one.add(entry(1))
    two.add(entry(2))
    assert ids(two.since({})[0]) == ["1", "2"]
    again = RequestLog(tmp_path, "one")
    again.add(entry(3))
    assert ids(two.since({})[0]) == ["1", "3", "2"]


def test_of_many_usual_requests_some_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MOST_A_SECOND", 2)
    log = RequestLog(None, "one")
    assert [log.takes_usual(now) for now in (5.0, 5.1, 5.2, 5.9, 6.0, 6.1, 6.2)] == [
        *(True, True, False, False),
        *(True, True, False),
    ]


def test_a_long_message_is_shortened_and_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, "one")
    log.add(entry(1, "x" * 3000))
    log.add(msgspec.structs.replace(entry(2), endpoint="x" * 3000))
    (found,) = log.since({})[0]
    shown = msgspec.json.decode(found, type=LoggedRequest)
    assert (shown.message, shown.parameters) == ("x" * 200, {})
