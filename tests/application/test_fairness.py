"""Two API keys share an engine: what one of them has queued does not delay the other one's request to its end."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path

import pytest

from tests.gateway.processes import LIMIT, Gateway, serving, until

pytestmark = [pytest.mark.slow, pytest.mark.torch]

CONFIG = """
[server]
workers = 1
keys_env = "TEST_GATEWAY_KEYS"
[backends.local]
kind = "native"
max_sequences = 2
[endpoints.demo]
served_entities = [{ name = "demo", backend = "local" }]
"""
QUEUED = 100
TOKENS = 40  # so many that a test process that waits for a core does not miss the queue


def ask(gateway: Gateway, key: str) -> None:
    body = json.dumps({"model": "demo", "prompt": "Count.", "max_tokens": TOKENS, "ignore_eos": True}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{gateway.url}/v1/completions", body, headers), timeout=LIMIT
    ) as got:
        assert got.status == 200
        got.read()


def test_a_key_with_a_hundred_queued_requests_does_not_starve_another_one(tmp_path: Path) -> None:
    (config := tmp_path / "gateway.toml").write_text(CONFIG)
    log = tmp_path / "log"
    with serving("--config", str(config), env={"TEST_GATEWAY_KEYS": "greedy,other"}, log=log) as gateway:
        ask(gateway, "other")
        answered: list[str] = []

        def count(key: str) -> None:
            ask(gateway, key)
            answered.append(key)

        queued = [threading.Thread(target=count, args=("greedy",)) for _ in range(QUEUED)]
        for thread in queued:
            thread.start()
        until(lambda: len(answered) >= 5, log)
        before = len(answered)
        for _ in range(3):
            count("other")
        overtaken = QUEUED - (len(answered) - 3)
        for thread in queued:
            thread.join()
    assert answered.count("greedy") == QUEUED
    # In turns with two at once: each of the three waits for a few of the greedy one's, not for its queue.
    assert overtaken > QUEUED - before - 30
