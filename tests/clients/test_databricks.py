"""databricks-sdk and mlflow's deployments client."""

from __future__ import annotations

import pytest
import requests
from databricks.sdk import WorkspaceClient
from databricks.sdk.errors import BadRequest, NotFound
from databricks.sdk.service.serving import ChatMessage, ChatMessageRole, EndpointStateReady
from mlflow.deployments import get_deploy_client

from tests.clients.conftest import CAPITAL, Server

pytestmark = pytest.mark.clients

MESSAGES = [{"role": "user", "content": CAPITAL}]


@pytest.fixture(scope="module")
def workspace(server: Server) -> WorkspaceClient:
    return WorkspaceClient(host=server.url, token="unused", auth_type="pat")


def test_sdk_query_chat(server: Server, workspace: WorkspaceClient) -> None:
    answer = workspace.serving_endpoints.query(
        server.model, messages=[ChatMessage(role=ChatMessageRole.USER, content=CAPITAL)], temperature=0, max_tokens=40
    )
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.served_model_name


def test_sdk_query_completion(server: Server, workspace: WorkspaceClient) -> None:
    answer = workspace.serving_endpoints.query(server.model, prompt=CAPITAL, temperature=0, max_tokens=40)
    assert "Paris" in answer.choices[0].text


def test_sdk_lists_endpoints(server: Server, workspace: WorkspaceClient) -> None:
    assert [endpoint.name for endpoint in workspace.serving_endpoints.list()] == [server.model]
    endpoint = workspace.serving_endpoints.get(server.model)
    assert endpoint.state.ready is EndpointStateReady.READY
    assert endpoint.config.served_entities


def test_sdk_errors(server: Server, workspace: WorkspaceClient) -> None:
    message = ChatMessage(role=ChatMessageRole.USER, content=CAPITAL)
    with pytest.raises(NotFound):
        workspace.serving_endpoints.query("no-such-endpoint", messages=[message])
    with pytest.raises(BadRequest):
        workspace.serving_endpoints.query(server.model, messages=[message], temperature=7)


@pytest.fixture
def mlflow_client(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DATABRICKS_HOST", server.url)
    monkeypatch.setenv("DATABRICKS_TOKEN", "unused")
    return get_deploy_client("databricks")


def test_mlflow_whole_equals_streamed(server: Server, mlflow_client) -> None:
    inputs = {"messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    whole = mlflow_client.predict(endpoint=server.model, inputs=inputs)
    text = whole["choices"][0]["message"]["content"]
    assert "Paris" in text
    chunks = list(mlflow_client.predict_stream(endpoint=server.model, inputs=inputs))
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]) == text


def test_mlflow_endpoints_and_errors(server: Server, mlflow_client) -> None:
    assert [endpoint["name"] for endpoint in mlflow_client.list_endpoints()] == [server.model]
    assert mlflow_client.get_endpoint(server.model)["name"] == server.model
    with pytest.raises(requests.HTTPError, match="RESOURCE_DOES_NOT_EXIST") as missing:
        mlflow_client.predict(endpoint="no-such-endpoint", inputs={"messages": MESSAGES})
    assert missing.value.response.status_code == 404
