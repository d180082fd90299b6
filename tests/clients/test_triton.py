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


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_infer_equals_generate(
    server: Server, client: triton.InferenceServerClient, binary: bool, compression: str | None
) -> None:
    text = triton.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_), binary_data=binary)
    outputs = [triton.InferRequestedOutput("text_output", binary_data=binary)]
    result = client.infer(
        server.model,
        [text],
        outputs=outputs,
        request_id="42",
        parameters=PARAMETERS,
        request_compression_algorithm=compression,
    )
    answer = result.as_numpy("text_output")[0]
    answer = answer.decode() if isinstance(answer, bytes) else answer
    assert result.get_response()["id"] == "42"
    assert answer == generate(server)["text_output"]


def tensor(name: str, datatype: str, *values: object) -> triton.InferInput:
    types = {"BYTES": np.object_, "INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BOOL": np.bool_}
    made = triton.InferInput(name, [1, len(values)], datatype)
    return made.set_data_from_numpy(np.array([values], dtype=types[datatype]))


def test_tensors_of_tensorrt_llm(server: Server, client: triton.InferenceServerClient) -> None:
    inputs = [
        tensor("text_input", "BYTES", PROMPT.encode()),
        tensor("max_tokens", "INT32", 12),
        tensor("temperature", "FP32", 0.0),
        tensor("top_p", "FP32", 1.0),
        tensor("random_seed", "UINT64", 7),
        tensor("stop_words", "BYTES", b""),
        tensor("bad_words", "BYTES", b""),
        tensor("beam_width", "INT32", 1),
        tensor("stream", "BOOL", False),
        tensor("return_log_probs", "BOOL", True),
    ]
    result = client.infer(server.model, inputs)
    assert result.as_numpy("text_output")[0].decode() == generate(server)["text_output"]
    logprobs = result.as_numpy("output_log_probs")
    assert len(logprobs) <= 12
    assert np.isclose(result.as_numpy("cum_log_probs")[0], logprobs.sum(), atol=1e-4)
    with pytest.raises(InferenceServerException, match="beam_width"):
        client.infer(server.model, [inputs[0], tensor("beam_width", "INT32", 2)])


def test_tensors_of_vllms_backend(server: Server, client: triton.InferenceServerClient) -> None:
    inputs = [
        tensor("text_input", "BYTES", PROMPT.encode()),
        tensor("sampling_parameters", "BYTES", json.dumps(PARAMETERS).encode()),
        tensor("exclude_input_in_output", "BOOL", True),
        tensor("return_finish_reason", "BOOL", True),
        tensor("return_num_output_tokens", "BOOL", True),
        tensor("return_cumulative_logprob", "BOOL", True),
    ]
    result = client.infer(server.model, inputs)
    assert result.as_numpy("text_output")[0].decode() == generate(server)["text_output"]
    assert result.as_numpy("finish_reason")[0].decode() in ("stop", "length")
    assert 0 < result.as_numpy("num_output_tokens")[0] <= 12
    assert result.as_numpy("cumulative_logprob")[0] < 0


def test_models_are_not_controlled(server: Server, client: triton.InferenceServerClient) -> None:
    assert {"generate", "generate_stream"} <= set(client.get_server_metadata()["extensions"])
    with pytest.raises(InferenceServerException, match="explicit model load / unload is not allowed"):
        client.unload_model(server.model)


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
