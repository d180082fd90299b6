"""A killed engine whose successor waits: what clients get, over HTTP, from real processes.

`pytest -s` prints the time from SIGKILL to the first token of the next request, and of a stream that goes on.
"""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.processes import Gateway, serving, state, until

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CONFIG = """
[backends.local]
kind = "native"
warm_engine = "loaded"
[endpoints.interlingua]
served_entities = [{ name = "demo", backend = "local" }]
"""
STILL = 1.0
"""Seconds without CPU time after which a process has done its preparations."""


def test_the_engine_in_waiting_takes_over(tmp_path: Path) -> None:
    config, log = tmp_path / "gateway.toml", tmp_path / "log"
    config.write_text(CONFIG)
    with serving("--config", str(config), log=log) as gateway:
        engine = gateway.engines()[0]  # in the order of their starts; the next one is started some seconds later
        expected = "".join(text for text, _ in _stream(gateway, 60))
        waiting = _engine_in_waiting(gateway, engine, log)
        running = _stream(gateway, 60)
        parts = [next(running)[0]]
        killed = time.monotonic()
        os.kill(engine, signal.SIGKILL)
        asked = _stream(gateway, 8)
        begun, at = next(asked)
        rest = list(running)
        parts += [text for text, _ in rest]
        after = max((at - before for (_, before), (_, at) in pairwise(rest)), default=0.0)
        print(f"first token {at - killed:.2f} s after SIGKILL; longest gap of the stream {after:.2f} s")
        assert "".join(parts) == expected
        assert expected.startswith(begun + "".join(text for text, _ in asked))
        assert waiting in gateway.engines()
    called = [json.loads(line) for line in log.read_text().splitlines() if '"engine.called"' in line]
    assert [line["loaded"] for line in called] == [False, True]


def _engine_in_waiting(gateway: Gateway, serving: int, log: Path) -> int:
    """The second engine's process id, once it has nothing more to do."""
    until(lambda: len(gateway.engines()) == 2, log)
    (waiting,) = (pid for pid in gateway.engines() if pid != serving)
    seen, since = -1.0, time.monotonic()

    def is_still() -> bool:
        nonlocal seen, since
        used = _cpu_seconds(waiting)
        if used != seen or state(waiting) != "S":
            seen, since = used, time.monotonic()
        return used > 1.0 and time.monotonic() - since > STILL

    until(is_still, log)
    return waiting


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stream(gateway: Gateway, tokens: int) -> Any:
    """The texts of a stream, each with the time of its arrival."""
    messages = [{"role": "user", "content": "Tell me a story."}]
    body = {"model": "interlingua", "messages": messages, "temperature": 0, "max_tokens": tokens, "stream": True}
    with gateway.open("/v1/chat/completions", body) as stream:
        for line in stream:
            if line.startswith(b"data: {"):
                frame = json.loads(line[6:])
                assert "error" not in frame, frame
                if text := frame["choices"][0]["delta"].get("content") if frame["choices"] else None:
                    yield text, time.monotonic()
