"""Endpoints are changed with databricks-sdk and mlflow while workers answer requests: no request is lost."""

from __future__ import annotations

import dataclasses
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from databricks.sdk import WorkspaceClient
from databricks.sdk.errors import InvalidParameterValue, NotFound, PermissionDenied, ResourceConflict
from databricks.sdk.service.serving import (
    AiGatewayRateLimit,
    AiGatewayRateLimitKey,
    AiGatewayRateLimitRenewalPeriod,
    AiGatewayUsageTrackingConfig,
    EndpointCoreConfigInput,
    EndpointStateConfigUpdate,
    EndpointStateReady,
    FallbackConfig,
    Route,
    ServedEntityInput,
    ServingEndpointDetailed,
    TrafficConfig,
)
from mlflow.deployments import get_deploy_client

from tests.clients.conftest import LIMIT, serving

pytestmark = pytest.mark.clients

CONFIG = """
[server]
workers = 4
keys_env = "ROLLOUT_KEYS"
admin_keys_env = "ROLLOUT_ADMIN_KEYS"
state_file = "{state}"
[backends.s]
kind = "scripted"
[backends.t]
kind = "scripted"
[endpoints.chat]
served_entities = [{{ name = "a", backend = "s", model = "echo" }}]
"""
KEYS = {"ROLLOUT_KEYS": "guest", "ROLLOUT_ADMIN_KEYS": "root"}
ARMS = [
    ServedEntityInput(name="current", entity_name="s/echo", workload_size="Small", scale_to_zero_enabled=True),
    ServedEntityInput(name="challenger", entity_name="t/echo", workload_size="Small", scale_to_zero_enabled=True),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rollout")
    (folder / "gateway.toml").write_text(CONFIG.format(state=folder / "state.json"))
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serving(folder / "log", "--config", str(folder / "gateway.toml"), env=KEYS) as url:
        yield url


def workspace(url: str, key: str = "root") -> WorkspaceClient:
    return WorkspaceClient(host=url, token=key, auth_type="pat")


def traffic(current: int) -> TrafficConfig:
    return TrafficConfig(
        routes=[
            Route(served_entity_name="current", traffic_percentage=current),
            Route(served_entity_name="challenger", traffic_percentage=100 - current),
        ]
    )


def ask(url: str, endpoint: str, *, stream: bool) -> str:
    """The arm that answered completely. Each request has its own connection, so any worker may accept it."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    headers = {"authorization": "Bearer guest", "content-type": "application/json"}
    request = urllib.request.Request(
        f"{url}/serving-endpoints/{endpoint}/invocations", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        data = answer.read()
        assert data.endswith(b"data: [DONE]\n\n") if stream else json.loads(data)["choices"]
        return answer.headers["served-model-name"]


@contextmanager
def load(url: str, endpoint: str) -> Iterator[list[str]]:
    """Run four clients in a loop; yields the growing list of arms that answered. Failures are raised at the end."""
    done, answered, failed = threading.Event(), [], []

    def run(stream: bool) -> None:
        while not done.is_set():
            try:
                answered.append(ask(url, endpoint, stream=stream))
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=run, args=(bool(number % 2),)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield answered
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failed, (len(failed), failed[0])
    assert len(answered) > 20
    print(f"{endpoint}: {len(answered)} answers, none lost")


def after(count: int, answered: list[str]) -> list[str]:
    """The next `count` answers."""
    begin = len(answered)
    while len(answered) < begin + count:
        threading.Event().wait(0.01)
    return answered[begin:]


def check(endpoint: ServingEndpointDetailed, current: int, version: int) -> None:
    assert endpoint.state.ready is EndpointStateReady.READY
    assert endpoint.state.config_update is EndpointStateConfigUpdate.NOT_UPDATING
    assert endpoint.config.config_version == version
    routes = endpoint.config.traffic_config.routes
    assert [route.traffic_percentage for route in routes] == [current, 100 - current]


def test_sdk_runs_a_whole_rollout_under_load(url: str) -> None:
    api = workspace(url).serving_endpoints
    with load(url, "chat"):
        made = api.create_and_wait(
            "rollout", config=EndpointCoreConfigInput("rollout", served_entities=ARMS, traffic_config=traffic(100))
        )
        check(made, 100, 1)
        with load(url, "rollout") as answered:
            for version, current in enumerate((90, 50, 0), 2):
                updated = api.update_config_and_wait("rollout", served_entities=ARMS, traffic_config=traffic(current))
                check(updated, current, version)
                check(api.get("rollout"), current, version)
                after(20, answered)
            assert set(answered) == {"current", "challenger"}
            after(8, answered)  # those in flight
            assert set(after(20, answered)) == {"challenger"}
        assert [endpoint.name for endpoint in api.list()] == ["chat", "rollout"]
        api.delete("rollout")
        with pytest.raises(NotFound):
            api.get("rollout")
    with pytest.raises(urllib.error.HTTPError):
        ask(url, "rollout", stream=False)


def test_mlflow_runs_a_whole_rollout_under_load(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_HOST", url)
    monkeypatch.setenv("DATABRICKS_TOKEN", "root")
    client = get_deploy_client("databricks")
    entities = [arm.as_dict() for arm in ARMS]

    def config(current: int) -> dict:
        return {"served_entities": entities, "traffic_config": traffic(current).as_dict()}

    client.create_endpoint(config={"name": "rollout", "config": config(100)})
    with load(url, "rollout") as answered:
        for version, current in enumerate((90, 50, 0), 2):
            updated = client.update_endpoint_config("rollout", config(current))
            assert updated["config"]["config_version"] == version
            assert client.get_endpoint("rollout").state == {"ready": "READY", "config_update": "NOT_UPDATING"}
            after(20, answered)
    assert [endpoint["name"] for endpoint in client.list_endpoints()] == ["chat", "rollout"]
    with pytest.raises(requests.HTTPError, match="RESOURCE_CONFLICT"):
        client.create_endpoint(config={"name": "rollout", "config": config(100)})
    client.delete_endpoint("rollout")
    with pytest.raises(requests.HTTPError, match="RESOURCE_DOES_NOT_EXIST"):
        client.get_endpoint("rollout")


def test_fifty_changes_under_load_lose_no_request(url: str) -> None:
    api = workspace(url).serving_endpoints
    api.create("many", config=EndpointCoreConfigInput("many", served_entities=ARMS, traffic_config=traffic(100)))
    with load(url, "many") as answered:
        for number in range(50):
            share = 98 - 2 * number
            updated = api.update_config_and_wait("many", served_entities=ARMS, traffic_config=traffic(share))
            check(updated, share, number + 2)
    assert set(answered) == {"current", "challenger"}
    api.delete("many")


def test_only_admin_keys_may_change_endpoints(url: str) -> None:
    with pytest.raises(PermissionDenied):
        workspace(url, "guest").serving_endpoints.delete("chat")
    api = workspace(url).serving_endpoints
    taken = EndpointCoreConfigInput("chat", served_entities=ARMS[:1])
    with pytest.raises(ResourceConflict):
        api.create("chat", config=taken)


def test_changes_survive_a_restart(folder: Path) -> None:
    arguments = ("--config", str(folder / "gateway.toml"))
    with serving(folder / "log-1", *arguments, env=KEYS) as url:
        config = EndpointCoreConfigInput("kept", served_entities=ARMS, traffic_config=traffic(30))
        workspace(url).serving_endpoints.create_and_wait("kept", config=config)
    with serving(folder / "log-2", *arguments, env=KEYS) as url:
        check(workspace(url).serving_endpoints.get("kept"), 30, 1)
        assert ask(url, "kept", stream=False) in ("current", "challenger")
        workspace(url).serving_endpoints.delete("kept")


def test_settings_of_the_ai_gateway(url: str) -> None:
    endpoints = workspace(url).serving_endpoints
    kept = endpoints.put_ai_gateway(
        "chat",
        usage_tracking_config=AiGatewayUsageTrackingConfig(enabled=True),
        fallback_config=FallbackConfig(enabled=True),
    )
    assert (kept.usage_tracking_config.enabled, kept.fallback_config.enabled) == (True, True)
    assert endpoints.get("chat").ai_gateway.usage_tracking_config.enabled
    limit = AiGatewayRateLimit(calls=1, renewal_period=AiGatewayRateLimitRenewalPeriod.MINUTE)
    endpoints.put_ai_gateway("chat", rate_limits=[limit])
    assert endpoints.get("chat").ai_gateway.rate_limits == [
        dataclasses.replace(limit, key=AiGatewayRateLimitKey.ENDPOINT)
    ]
    ask(url, "chat", stream=False)
    with pytest.raises(urllib.error.HTTPError, match="429"):
        ask(url, "chat", stream=False)
    endpoints.put_ai_gateway("chat", rate_limits=[])
    group = AiGatewayRateLimit(
        calls=1, renewal_period=AiGatewayRateLimitRenewalPeriod.MINUTE, key=AiGatewayRateLimitKey.USER_GROUP
    )
    with pytest.raises(InvalidParameterValue, match="user_group"):
        endpoints.put_ai_gateway("chat", rate_limits=[group])
