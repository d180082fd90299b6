"""tritonclient over HTTP, and the generate extension, for which it has no call."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.clients.conftest import Server

pytestmark = pytest.mark.clients

PROMPT = "The capital of France is"
PARAMETERS = {"max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def client(server: Server) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(server.address)


def test_health_and_metadata(server: Server, client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(server.model)
    assert client.is_model_ready(server.model, "1")
    assert not client.is_model_ready("no-such-model")
    assert {"name", "version", "extensions"} <= client.get_server_metadata().keys()
    metadata = client.get_model_metadata(server.model)
    assert metadata["name"] == server.model
    assert "text_input" in [tensor["name"] for tensor in metadata["inputs"]]
    assert client.get_model_config(server.model)["name"] == server.model
    assert client.get_model_repository_index()[0]["state"] == "READY"
    assert client.get_inference_statistics(server.model)["model_stats"][0]["name"] == server.model


@pytest.mark.parametrize("binary", [True, False])
def test_infer_equals_generate(server: Server, client: triton.InferenceServerClient, binary: bool) -> None:
    text = triton.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_), binary_data=binary)
    outputs = [triton.InferRequestedOutput("text_output", binary_data=binary)]
    result = client.infer(server.model, [text], outputs=outputs, request_id="42", parameters=PARAMETERS)
    answer = result.as_numpy("text_output")[0]
    answer = answer.decode() if isinstance(answer, bytes) else answer
    assert result.get_response()["id"] == "42"
    assert answer == generate(server)["text_output"]


def test_generate_whole_equals_streamed(server: Server) -> None:
    whole = generate(server)
    assert whole["text_output"]
    assert whole["model_name"] == server.model
    frames = list(generate_stream(server))
    assert "".join(frame["text_output"] for frame in frames) == whole["text_output"]


def test_errors(server: Server, client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException):
        client.get_model_metadata("no-such-model")
    with pytest.raises(urllib.error.HTTPError) as error:
        post(server, "generate", {"text_input": 3})
    assert list(json.load(error.value)) == ["error"]


def generate(server: Server) -> dict:
    return json.load(post(server, "generate", {"text_input": PROMPT, "parameters": PARAMETERS}))


def generate_stream(server: Server):
    for line in post(server, "generate_stream", {"text_input": PROMPT, "parameters": PARAMETERS}):
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


def post(server: Server, call: str, body: dict):
    url = f"{server.url}/v2/models/{server.model}/{call}"
    return urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), method="POST"))
