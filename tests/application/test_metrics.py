"""`/metrics` of several worker processes: any of them shows the sums of all, and no sum ever goes down."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.gateway.processes import LIMIT, Gateway, serving, until

pytestmark = pytest.mark.slow

CONFIG = """
[server]
workers = {workers}
drain_timeout = 1.0
[backends.s]
kind = "scripted"
[endpoints.echo]
served_entities = [{{ name = "echo-1", backend = "s", model = "echo" }}]
[endpoints.hang]
served_entities = [{{ name = "hang-1", backend = "s", model = "hang-after-2" }}]
"""
CHAT = {"model": "echo", "messages": [{"role": "user", "content": "one two three"}]}
WORKERS = 3
ENDED = 'gw_requests_total{outcome="ok",protocol="openai",route="chat"}'


def test_every_worker_shows_the_sums_and_a_killed_one_keeps_its_counts(tmp_path: Path) -> None:
    (file := tmp_path / "gateway.toml").write_text(CONFIG.format(workers=WORKERS))
    with serving("--config", str(file), log=tmp_path / "log") as gateway:
        streams = []
        for number, worker in enumerate(gateway.workers()):
            with gateway.only(worker):
                for _ in range(10**number):
                    gateway.ask("/v1/chat/completions", CHAT)
                streams.append(gateway.open("/v1/chat/completions", CHAT | {"model": "hang", "stream": True}))
        until(lambda: scraped(gateway) == [(111, 3)] * WORKERS, gateway.log)

        killed = gateway.workers()[2]
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in gateway.workers(), gateway.log)
        until(lambda: len(gateway.workers()) == WORKERS, gateway.log)
        assert scraped(gateway) == [(111, 2)] * WORKERS
        gateway.ask("/v1/chat/completions", CHAT)
        until(lambda: scraped(gateway) == [(112, 2)] * WORKERS, gateway.log)
        for stream in streams:
            stream.close()

        file.write_text(CONFIG.format(workers=1))
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: len(gateway.workers()) == 1, gateway.log)
        assert scraped(gateway) == [(112, 0)], "a new configuration continues the sums"


def scraped(gateway: Gateway) -> list[tuple[float, float]]:
    """The finished and the running requests, as each worker reports them."""
    found = []
    for worker in gateway.workers():
        with gateway.only(worker):
            shown = samples(gateway)
        found.append((shown[ENDED], shown["gw_requests_running"]))
    return found


def samples(gateway: Gateway) -> dict[str, float]:
    with urllib.request.urlopen(f"{gateway.url}/metrics", timeout=LIMIT) as answer:
        text = answer.read().decode()
    found = re.findall(r"(?m)^([^# ].*) (\S+)$", text)
    assert len(dict(found)) == len(found), "a series is shown once"
    assert not re.search(r'\b(worker|pid)="', text)
    return {name: float(value) for name, value in found}
