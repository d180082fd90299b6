"""Logging to standard error: JSON lines where it is no terminal, and no secrets."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

import pytest
import structlog

from gateway.observability import logging

PROGRAM = """
import sys
import structlog
from gateway.observability import logging

logging.configure(sys.argv[1])
log = structlog.get_logger()
log.debug("detail.logged")
logging.EVENTS.info({"event": "line.written", "status": 200, "token": "canary"})
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


@pytest.mark.slow
def test_events_are_json_lines_without_secrets() -> None:
    written, finished, failed = logged("info")
    # An event that is a dictionary already has the same fields.
    assert (written["event"], written["level"], written["status"]) == ("line.written", "info", 200)
    assert written["token"] == "***"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", str(written["timestamp"]))
    assert finished["event"] == "request.finished"
    assert (finished["level"], finished["status"], finished["path"]) == ("info", 200, "x")
    assert (finished["key"], finished["prompt"], finished["text"]) == ("***", "***", "***")
    assert (failed["level"], failed["authorization"]) == ("error", "***")
    assert "ZeroDivisionError" in str(failed["exception"])
    assert str(finished["timestamp"]).endswith("Z")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "events"),
    [
        ("debug", ["detail.logged", "line.written", "request.finished", "request.failed"]),
        ("WARNING", ["request.failed"]),
        ("critical", []),
    ],
)
def test_the_level_is_the_lowest_that_is_logged(level: str, events: list[str]) -> None:
    assert [line["event"] for line in logged(level)] == events


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(KeyError):
        logging.configure("loud")


HOSTILE = "\x1b[2J\x1b]0;owned\x07 \x9b31m \x85 \u202e \u2066 \u200b \ufeff \x7f \r end"
ON_A_TERMINAL = f"""
import structlog
from gateway.observability import logging

logging.configure("info")
log = structlog.get_logger()
log.info("request.finished", model={HOSTILE!r}, names=[{HOSTILE!r}], trace="one\\ntwo")
try:
    raise ValueError({HOSTILE!r})
except ValueError:
    log.exception("request.broke")
"""


@pytest.mark.slow
def test_a_terminal_gets_no_control_bytes_from_outside() -> None:
    ours, terminal = pty.openpty()
    subprocess.run([sys.executable, "-c", ON_A_TERMINAL], stderr=terminal, check=True, timeout=60)
    os.close(terminal)
    shown = b""
    with open(ours, "rb", buffering=0) as reader, suppress(OSError):  # EIO: the other side is closed
        while part := reader.read(1 << 16):
            shown += part
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())  # the renderer's colours
    assert "owned" in text
    assert "end" in text
    assert re.findall(r"[^\n\r\t -~]", text) == []
    assert "\r" not in text.replace("\r\n", "\n"), "the terminal's own line ends"


def test_a_request_is_one_short_line_on_a_terminal() -> None:
    from gateway.observability.logging import _shorten

    event = {"event": "request.finished", "level": "info", "protocol": "openai", "route": "chat", "status": 200}
    event |= {"model": "interlingua", "served": "demo", "duration_s": 0.162, "outcome": "ok", "stage": None}
    event |= {"prompt_tokens": 4, "completion_tokens": 10, "request_id": "r1"}
    assert _shorten(None, "info", event)["event"] == "openai chat interlingua->demo 200 162 ms 4+10 tok"
    failed = event | {"status": 502, "outcome": "incomplete", "stage": "stream", "prompt_tokens": None}
    assert _shorten(None, "info", failed)["event"].endswith("502 162 ms incomplete at stream (r1)")
    assert _shorten(None, "info", {"event": "backend.reached"}) == {"event": "backend.reached"}


class Stream(io.BytesIO):
    """Standard error that remembers what each flush has written, unless its reader is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.gone = False

    def flush(self) -> None:
        if self.gone:
            raise BrokenPipeError
        if data := self.getvalue():
            self.pieces.append(data)
        self.seek(0)
        self.truncate()


def test_lines_of_a_batch_are_written_together_and_never_parts_of_one() -> None:
    log, stream = logging.EventLog(), Stream()
    log.configure(structlog.get_config()["processors"], stream)
    log.info({"event": "alone"})
    log.begin_batch()
    for number in range(20):
        log.info({"event": "together", "number": number, "text_of_a_line": "x" * 500})
    log.info({"event": "long", "text_of_a_line": "x" * 9000})
    log.info({"event": "last"})
    assert len(stream.pieces) == 1
    log.end_batch()
    log.info({"event": "behind"})
    lines = [json.loads(line) for line in b"".join(stream.pieces).splitlines()]
    expected = ["alone", *["together"] * 20, "long", "last", "behind"]
    assert [line["event"] for line in lines] == expected
    assert [line["number"] for line in lines[1:21]] == [*range(20)]
    assert all(piece.endswith(b"\n") and (len(piece) <= 4096 or piece.count(b"\n") == 1) for piece in stream.pieces)
    assert len(stream.pieces) <= 8


def test_a_reader_that_is_gone_fails_nothing() -> None:
    log, stream = logging.EventLog(), Stream()
    log.configure(structlog.get_config()["processors"], stream)
    stream.gone = True
    log.info({"event": "alone"})
    log.begin_batch()
    log.info({"event": "together"})
    log.end_batch()
