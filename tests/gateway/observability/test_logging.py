"""Logging to standard error: JSON lines where it is no terminal, and no secrets."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gateway.observability import logging

PROGRAM = """
import sys
import structlog
from gateway.observability import logging

logging.configure(sys.argv[1])
log = structlog.get_logger()
log.debug("detail.logged")
log.info("request.finished", status=200, path=__import__("pathlib").Path("x"), key="canary", prompt="canary", text="")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("request.failed", authorization="canary")
"""


def logged(level: str) -> list[dict[str, object]]:
    run = subprocess.run([sys.executable, "-c", PROGRAM, level], stderr=subprocess.PIPE, check=True, timeout=60)
    assert b"canary" not in run.stderr
    return [json.loads(line) for line in run.stderr.splitlines()]


def test_events_are_json_lines_without_secrets() -> None:
    finished, failed = logged("info")
    assert finished["event"] == "request.finished"
    assert (finished["level"], finished["status"], finished["path"]) == ("info", 200, "x")
    assert (finished["key"], finished["prompt"], finished["text"]) == ("***", "***", "***")
    assert (failed["level"], failed["authorization"]) == ("error", "***")
    assert "ZeroDivisionError" in str(failed["exception"])
    assert str(finished["timestamp"]).endswith("Z")


@pytest.mark.parametrize(
    ("level", "events"),
    [
        ("debug", ["detail.logged", "request.finished", "request.failed"]),
        ("WARNING", ["request.failed"]),
        ("critical", []),
    ],
)
def test_the_level_is_the_lowest_that_is_logged(level: str, events: list[str]) -> None:
    assert [line["event"] for line in logged(level)] == events


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(KeyError):
        logging.configure("loud")
