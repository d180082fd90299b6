"""mlflow's deployments client, as Databricks' users have it, at an endpoint with limits and guardrails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from mlflow.deployments import get_deploy_client

from tests.clients.conftest import serving

pytestmark = pytest.mark.clients

CONFIG = """
[server]
workers = 2
keys_file = "{folder}/keys.json"
admin_keys_env = "LIMITS_ADMIN_KEYS"
state_file = "{folder}/state.json"
[backends.s]
kind = "scripted"
[backends.s.scripts]
fast = {{ texts = ["A short answer."] }}
slow = {{ texts = ["A late answer."], delay = 1.5 }}
[endpoints.chat]
served_entities = [{{ name = "a", backend = "s", model = "fast" }}]
[endpoints.busy]
served_entities = [{{ name = "a", backend = "s", model = "slow" }}]
limits = [{{ concurrent = 1 }}]
"""
INPUTS = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("limits")
    (folder / "gateway.toml").write_text(CONFIG.format(folder=folder))
    (folder / "keys.json").write_text('{"keys": []}')
    arguments = ("--config", str(folder / "gateway.toml"))
    with serving(folder / "log", *arguments, env={"LIMITS_ADMIN_KEYS": "root"}) as url:
        yield url


@pytest.fixture
def client(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DATABRICKS_HOST", url)
    monkeypatch.setenv("DATABRICKS_TOKEN", "root")
    return get_deploy_client("databricks")


def test_a_limit_that_mlflow_sets_holds(client, url: str) -> None:
    limits = [{"calls": 2, "key": "endpoint", "renewal_period": "minute"}]
    kept = client.update_endpoint_rate_limits(endpoint="chat", config={"rate_limits": limits})
    assert kept["rate_limits"] == limits
    assert client.get_endpoint("chat")["ai_gateway"]["rate_limits"] == limits
    assert client.predict(endpoint="chat", inputs=INPUTS)["choices"]
    assert list(client.predict_stream(endpoint="chat", inputs=INPUTS))
    # Not by mlflow, which would wait for the end of the minute, as retry-after says.
    headers = {"authorization": "Bearer root"}
    refused = requests.post(f"{url}/serving-endpoints/chat/invocations", json=INPUTS, headers=headers, timeout=60)
    assert (refused.status_code, refused.json()["error_code"]) == (429, "REQUEST_LIMIT_EXCEEDED")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert 0 < int(refused.headers["retry-after"]) <= 60
    client.update_endpoint_rate_limits(endpoint="chat", config={"rate_limits": []})
    assert client.predict(endpoint="chat", inputs=INPUTS)["choices"]


def test_mlflow_waits_for_retry_after_and_gets_its_answer(client) -> None:
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda: answers.append(client.predict(endpoint="busy", inputs=INPUTS)["choices"]))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.3)  # the first one runs, and is all that may
    for thread in threads:
        thread.join(60)
    assert len(answers) == 2


def test_guardrails_that_mlflow_sets_hold(client) -> None:
    guardrails = {"input": {"invalid_keywords": ["SuperData"]}, "output": {"pii": {"behavior": "MASK"}}}
    kept = client.update_endpoint_ai_gateway(endpoint="chat", config={"guardrails": guardrails})
    assert kept["guardrails"] == guardrails
    asked = {"messages": [{"role": "user", "content": "What is superdata?"}]}
    with pytest.raises(requests.HTTPError, match="SuperData") as refused:
        client.predict(endpoint="chat", inputs=asked)
    assert refused.value.response.status_code == 400
    client.update_endpoint_ai_gateway(endpoint="chat", config={"guardrails": {}})
    assert client.predict(endpoint="chat", inputs=asked)["choices"]
