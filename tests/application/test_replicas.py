"""Two gateways over one upstream: their figures, added up, are those of one gateway with the same traffic."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.application.test_experiment_truth import Upstream
from tests.gateway.processes import LIMIT, Gateway, serving

pytestmark = pytest.mark.slow

CONFIG = """
[server]
workers = {workers}
state_file = "{folder}/state.json"
[backends.good]
kind = "openai"
url = "http://127.0.0.1:{port}/good/v1"
[backends.odd]
kind = "openai"
url = "http://127.0.0.1:{port}/odd/v1"
retries = {{ attempts = 1 }}
failures = 1000  # with fewer, the order of requests decides when the arm is asked last
[backends.short]
kind = "openai"
url = "http://127.0.0.1:{port}/short/v1"
[endpoints.chat]
served_entities = [
  {{ name = "a", backend = "good", model = "m", traffic_percentage = 40 }},
  {{ name = "b", backend = "odd", model = "m", traffic_percentage = 30 }},
  {{ name = "c", backend = "short", model = "m", traffic_percentage = 30 }},
]
"""
USERS = range(360)
RATES = ("success", "served", "refused", "abandoned")


@pytest.fixture
def port() -> Iterator[int]:
    """Of a running upstream."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_figures_of_two_gateways_add_up_to_those_of_one(tmp_path: Path, port: int) -> None:
    folders = [(tmp_path / name, workers) for name, workers in (("alone", 1), ("one", 1), ("two", 2))]
    contexts = [serving("--config", configured(*each, port), log=each[0] / "log") for each in folders]
    with ExitStack() as stack:
        with ThreadPoolExecutor() as pool:  # its end waits for all, so that the stack has all that began
            alone, one, two = pool.map(stack.enter_context, contexts)
        asked = [(alone, user) for user in USERS] + [(one if user < 200 else two, user) for user in USERS]
        with ThreadPoolExecutor(4) as pool:
            for answer in [pool.submit(ask, *each) for each in asked]:
                answer.result()
        source, target = (str(tmp_path / name / "state.json.experiments") for name in ("two", "one"))
        before = report(one)
        for _ in range(2):  # a second call replaces what the first one has added
            done = CliRunner().invoke(main, ["experiment", "add", source, "--to", target, "--label", "two"])
            assert done.exit_code == 0, done.output
        expected, found = report(alone), report(one)
    assert sum(arm["exposures"] for arm in before["arms"]) == 200
    assert sum(arm["exposures"] for arm in found["arms"]) == len(USERS)
    for arm, other in zip(expected["arms"], found["arms"], strict=True):
        for figure in ("name", "exposures", "apart", "requests", "finish_reasons", "effective_units"):
            assert other[figure] == arm[figure], figure
        for metric in (*RATES, "prompt_tokens", "completion_tokens"):
            assert other["means"][metric] == arm["means"][metric]
    # The sums are the same in every bucket of units, so intervals and words are, too.
    assert [each for each in found["comparisons"] if each["metric"] in RATES] == [
        each for each in expected["comparisons"] if each["metric"] in RATES
    ]
    assert found["verdict"]["word"] == expected["verdict"]["word"] == "stop"


def configured(folder: Path, workers: int, port: int) -> str:
    folder.mkdir()
    (file := folder / "gateway.toml").write_text(CONFIG.format(folder=folder, port=port, workers=workers))
    return str(file)


def ask(gateway: Gateway, user: int) -> None:
    content = "x" * (user % 90 + 1)
    body = {"model": "chat", "user": f"u{user}", "messages": [{"role": "user", "content": content}]}
    with suppress(urllib.error.HTTPError):  # of the arm that refuses long prompts
        gateway.ask("/v1/chat/completions", body)


def report(gateway: Gateway) -> Any:
    with urllib.request.urlopen(f"{gateway.url}/serving-endpoints/chat/experiment", timeout=LIMIT) as answer:
        return json.load(answer)
