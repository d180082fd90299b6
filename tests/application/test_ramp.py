"""Ramps in real processes: up to all of the traffic for a good arm, and back to none for a bad one."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli.experiment import experiment
from tests.gateway.processes import LIMIT, Gateway, alive, serving, until

pytestmark = pytest.mark.slow

CONFIG = """
[server]
workers = 2
state_file = "{folder}/state.json"
[backends.s]
kind = "scripted"
[endpoints.chat]
fallback = {{ enabled = false }}
served_entities = [
  {{ name = "a", backend = "s", model = "echo" }},
  {{ name = "b", backend = "s", model = "{model}", traffic_percentage = 0 }},
]
[endpoints.chat.experiment]
margin = 0.95
primary = ["success"]
ramp = {{ arm = "b", {steps}, metrics = ["success"] }}
"""
STEPS = "steps = [40, 100], hold = 0.5, hold_requests = 50"


def asked_until(
    gateway: Gateway, reached: Callable[[dict[str, Any]], bool], first_user: int = 0
) -> tuple[dict[str, Any], int]:
    """Ask until the ramp has reached something, each time as another user; the ramp, and the last user's number."""
    deadline, user = time.monotonic() + LIMIT, first_user
    while not reached(found := report(gateway)["ramp"]):
        assert time.monotonic() < deadline, found
        for _ in range(100):
            user += 1
            ask(gateway, user)
    return found, user


def has_status(status: str) -> Callable[[dict[str, Any]], bool]:
    return lambda ramp: bool(ramp["status"] == status)


def ask(gateway: Gateway, user: int) -> None:
    body = {"model": "chat", "user": f"user {user}", "messages": [{"role": "user", "content": "Hi"}]}
    with suppress(urllib.error.HTTPError):  # of the arm that is made to fail
        gateway.ask("/v1/chat/completions", body)


def report(gateway: Gateway) -> dict[str, Any]:
    with urllib.request.urlopen(f"{gateway.url}/serving-endpoints/chat/experiment", timeout=LIMIT) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def configured(folder: Path, model: str, steps: str = STEPS) -> str:
    (file := folder / "gateway.toml").write_text(CONFIG.format(folder=folder, model=model, steps=steps))
    return str(file)


def test_a_good_arm_gets_all_of_the_traffic_and_a_restart_changes_nothing(tmp_path: Path) -> None:
    file = configured(tmp_path, "echo")
    with serving("--config", file, log=tmp_path / "log") as gateway:
        found, _ = asked_until(gateway, has_status("finished"))
        assert (found["traffic_percentage"], found["next_percentage"]) == (100, None)
        assert [step["traffic_percentage"] for step in found["history"]] == [40, 100]
        assert found["history"][1]["reason"] == "no worse than a by success"
    with serving("--config", file, log=tmp_path / "log") as gateway:
        assert report(gateway)["ramp"] == found


def test_a_ramp_through_a_killed_gateway_ends_in_one_verdict_from_all_its_data(tmp_path: Path) -> None:
    file = configured(tmp_path, "echo", 'steps = [1, 5, 25, 50], hold = 0.4, advance = "unless_worse"')
    with serving("--config", file, log=tmp_path / "log") as gateway:
        # At least: on a busy machine a step may be over before it is looked at.
        _, asked = asked_until(gateway, lambda ramp: ramp["traffic_percentage"] >= 5)
        workers = gateway.workers()
        gateway.process.send_signal(signal.SIGKILL)
        gateway.process.wait(LIMIT)
        until(lambda: not any(map(alive, workers)), tmp_path / "log")
    with serving("--config", file, log=tmp_path / "again") as gateway:
        found, asked = asked_until(gateway, has_status("finished"), asked)
        assert [step["traffic_percentage"] for step in found["history"]] == [1, 5, 25, 50]
        # How many were asked on the way depends on the machine; 500 were too few for a verdict.
        for _ in range(max(200, 1200 - asked)):
            asked += 1
            ask(gateway, asked)
        figures = report(gateway)
        assert [split["traffic_percentages"] for split in figures["splits"]] == [
            [100 - share, share] for share in (0, 1, 5, 25, 50)
        ]
        assert sum(arm["exposures"] for arm in figures["arms"]) == asked
        assert sum(arm["requests"].get("success", 0) for arm in figures["arms"]) == asked
        assert (figures["verdict"]["word"], figures["sample_ratio_mismatch"]) == ("no worse", False), figures


def test_a_worse_arm_goes_back_to_nothing(tmp_path: Path) -> None:
    with serving("--config", configured(tmp_path, "error"), log=tmp_path / "log") as gateway:
        found, _ = asked_until(gateway, has_status("rolled_back"))
        assert (found["traffic_percentage"], found["next_percentage"]) == (0, None)
        assert "worse than a by success" in found["history"][-1]["reason"]
        for user in range(20):  # all are the control's
            body = {"model": "chat", "user": f"user {user}", "messages": [{"role": "user", "content": "Hi"}]}
            with gateway.open("/v1/chat/completions", body) as answer:
                assert answer.headers["served-model-name"] == "a"
        done = CliRunner().invoke(experiment, ["restart-ramp", "chat", "--url", gateway.url])
        assert (done.exit_code, done.output) == (0, "chat: b has 0 %, next 40 %\n"), done.output
        # The arm still fails, and the new figures say so again.
        again, _ = asked_until(gateway, has_status("rolled_back"))
        assert again["history"][0]["since"] > found["history"][-1]["since"]
        unknown = CliRunner().invoke(experiment, ["restart-ramp", "none", "--url", gateway.url])
        assert (unknown.exit_code, "404" in unknown.output) == (1, True)
