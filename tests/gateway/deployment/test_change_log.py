"""The record of who changed what."""

from __future__ import annotations

from pathlib import Path

from gateway.deployment.change_log import ChangeLog
from gateway.deployment.deployments import Deployment
from tests.gateway.serving import endpoint


def deployment(share: int) -> Deployment:
    return Deployment(endpoint=endpoint(("a", "scripted", 100 - share), ("b", "scripted", share)), version=share)


def test_changes_of_an_endpoint_come_newest_first_and_a_broken_line_is_skipped(tmp_path: Path) -> None:
    log = ChangeLog(str(tmp_path / "state.json"))
    log.note("chat", "update", "root", deployment(10), deployment(20))
    log.note("other", "create", "root", None, deployment(1))
    with (tmp_path / "state.json.changes").open("a") as file:
        file.write('{"time": 1\n')
    ChangeLog(str(tmp_path / "state.json")).note("chat", "delete", "", deployment(20), None)
    found = log.of("chat")
    assert [(each.action, each.by, each.before, each.after, each.version) for each in found] == [
        ("delete", "", {"a": 80, "b": 20}, {}, 0),
        ("update", "root", {"a": 90, "b": 10}, {"a": 80, "b": 20}, 20),
    ]


def test_without_a_state_file_there_is_nothing_to_note() -> None:
    log = ChangeLog(None)
    log.note("chat", "update", "", deployment(10), deployment(20))
    assert log.of("chat") == []


def test_a_change_that_cannot_be_noted_is_made_all_the_same(tmp_path: Path) -> None:
    log = ChangeLog(str(tmp_path / "absent" / "state.json"))
    log.note("chat", "update", "", deployment(10), deployment(20))
    assert log.of("chat") == []
