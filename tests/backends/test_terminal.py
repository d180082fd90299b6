"""What terminals are shown: no control characters, no colors with NO_COLOR, and engines log like workers."""

from __future__ import annotations

import io
import sys

import pytest
import structlog

from backends.native.engine.serving.__main__ import configure_log
from backends.terminal import escape_controls


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "shown"), [("plain\n", "plain\n"), ("a\x1b[2Jb", "a\\x1b[2Jb"), ("\u202e", "\\u202e")]
)
def test_controls_are_escaped(text: str, shown: str) -> None:
    assert escape_controls(text) == shown


@pytest.mark.parametrize("terminal", [True, False])
def test_an_engine_logs_like_a_worker(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("NO_COLOR", "1")
    configure_log()
    try:
        structlog.get_logger().info("engine.ready", model="a\x1bb")
    finally:
        structlog.reset_defaults()
    if terminal:
        assert "[info     ] engine.ready" in out.getvalue()
        assert "model=a\\x1bb" in out.getvalue()
        assert "\x1b" not in out.getvalue()
    else:
        assert out.getvalue().startswith('{"model": "a\\u001bb", "event": "engine.ready"')
