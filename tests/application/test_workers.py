"""Several worker processes: a unit has one arm on all of them, each reports all counters, and keys hold for all."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.access.keys_file import keys_file, new_key, revoke_key
from gateway.routing.assignment import assign
from tests.gateway.processes import LIMIT, SCRIPTED, Gateway, serving, until

pytestmark = pytest.mark.slow

CONFIG = """
[server]
workers = 4
[backends.s]
kind = "scripted"
[endpoints.chat]
experiment = { feedback = { liked = "higher" } }
served_entities = [
  { name = "a", backend = "s", model = "echo", traffic_percentage = 80 },
  { name = "b", backend = "s", model = "echo", traffic_percentage = 20 },
]
"""
SHARES = {"a": 80.0, "b": 20.0}


def test_workers_agree_and_report_all_counters(tmp_path: Path) -> None:
    (file := tmp_path / "gateway.toml").write_text(CONFIG)
    with serving("--config", str(file), log=tmp_path / "log") as gateway:
        workers, ids = gateway.workers(), list[str]()
        for worker in workers:
            with gateway.only(worker):
                ids += [ask(gateway, user) for user in range(50)]
        assert len(set(ids)) == 50 * len(workers) == 200
        for number, id in enumerate(ids):
            send_feedback(gateway, id, number % 2)
        reports = [report(gateway) for _ in range(20)]
    assert all(each == reports[0] for each in reports)
    arms = reports[0]["arms"]
    assert sum(arm["exposures"] for arm in arms) == 200
    assert sum(arm["exposures"] * arm["means"]["liked"] for arm in arms) == pytest.approx(100)


def test_a_revoked_key_is_refused_by_all_workers(tmp_path: Path) -> None:
    """How soon is printed by `benchmarks.limits`."""
    keys = keys_file(tmp_path / "keys.json")
    stays, goes = (new_key(keys, name) for name in ("stays", "goes"))
    config = SCRIPTED.format(workers=2).replace("workers", f'keys_file = "{tmp_path}/keys.json"\nworkers')
    (tmp_path / "gateway.toml").write_text(config)

    def status(key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(headers=headers, timeout=LIMIT) as client:  # a connection of its own
            return client.get(f"{gateway.url}/v1/models").status_code

    with serving("--config", str(tmp_path / "gateway.toml"), log=tmp_path / "log") as gateway:
        workers = gateway.workers()
        assert len(workers) == 2
        for worker in workers:
            with gateway.only(worker):
                assert (status(stays), status(goes)) == (200, 200)
        revoke_key(keys, "goes")
        for worker in workers:
            with gateway.only(worker):
                until(lambda: status(goes) == 401, tmp_path / "log")
                assert status(stays) == 200


def ask(gateway: Gateway, user: int) -> str:
    """Ask as a user, check that the user's arm answered, and return the answer's id."""
    body = {"model": "chat", "user": f"user {user}", "messages": [{"role": "user", "content": "Hi"}]}
    with gateway.open("/v1/chat/completions", body) as answer:
        assert answer.headers["served-model-name"] == assign("chat", SHARES, body["user"])
        return str(answer.headers["x-request-id"])


def send_feedback(gateway: Gateway, id: str, value: int) -> None:
    """Send feedback to any worker."""
    with gateway.open("/v1/feedback", {"request_id": id, "metric": "liked", "value": value}) as answer:
        assert answer.status == 204


def report(gateway: Gateway) -> Any:
    """The experiment report of any worker."""
    with urllib.request.urlopen(f"{gateway.url}/serving-endpoints/chat/experiment", timeout=LIMIT) as answer:
        return json.load(answer)
