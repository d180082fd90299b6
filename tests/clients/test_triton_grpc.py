"""tritonclient over gRPC: its blocking client, its streams and its asyncio client; and the messages are its own."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException

import schemas
from adapters.formats.protobuf import load
from tests.clients.conftest import Server, serving
from tests.ports import free_port

pytestmark = pytest.mark.clients

PROMPT = "The capital of France is"
PARAMETERS = {"max_tokens": 12, "temperature": 0}
KEY = "sesame"
HEADERS = {"authorization": f"Bearer {KEY}"}
CONFIG = """
[server]
keys_env = "TEST_KEYS"
[server.grpc]
port = {port}
[backends.local]
kind = "native"
[endpoints.interlingua]
served_entities = [{{ name = "interlingua", backend = "local" }}]
"""


class Both(Server):
    """A gateway that listens for gRPC at `rpc`, too."""

    rpc: str


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("grpc")
    port = free_port()
    (folder / "gateway.toml").write_text(CONFIG.format(port=port))
    with serving(folder / "log", "--config", str(folder / "gateway.toml"), env={"TEST_KEYS": KEY}) as url:
        found = Both(url, "interlingua")
        found.rpc = f"127.0.0.1:{port}"
        yield found


@pytest.fixture(scope="module")
def client(both: Both) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(both.rpc) as found:
        yield found


def tensor(name: str, datatype: str, *values: object) -> triton.InferInput:
    types = {"BYTES": np.object_, "INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BOOL": np.bool_}
    made = triton.InferInput(name, [1, len(values)], datatype)
    return made.set_data_from_numpy(np.array([values], dtype=types[datatype]))


def over_http(server: Server) -> dict[str, Any]:
    flags = {f"return_{name}": True for name in ("finish_reason", "num_input_tokens", "num_output_tokens")}
    body = json.dumps({"text_input": PROMPT, "parameters": PARAMETERS} | flags).encode()
    request = urllib.request.Request(f"{server.url}/v2/models/{server.model}/generate", body, HEADERS)
    answer: dict[str, Any] = json.load(urllib.request.urlopen(request))
    return answer


FLAGS = [tensor(f"return_{name}", "BOOL", True) for name in ("finish_reason", "num_input_tokens", "num_output_tokens")]


def test_health_and_metadata(both: Both, client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(both.model, "1", headers=HEADERS)
    assert not client.is_model_ready("no-such-model", headers=HEADERS)
    assert client.get_server_metadata(headers=HEADERS).name == "interlingua"
    metadata = client.get_model_metadata(both.model, headers=HEADERS)
    assert "text_input" in [tensor.name for tensor in metadata.inputs]
    config = client.get_model_config(both.model, headers=HEADERS).config
    assert config.model_transaction_policy.decoupled
    assert client.get_model_repository_index(headers=HEADERS).models[0].state == "READY"
    assert client.get_inference_statistics(both.model, headers=HEADERS).model_stats[0].name == both.model


def test_a_whole_answer_equals_that_over_http(both: Both, client: triton.InferenceServerClient) -> None:
    result = client.infer(
        both.model,
        [tensor("text_input", "BYTES", PROMPT.encode()), *FLAGS],
        request_id="42",
        parameters=PARAMETERS,
        headers=HEADERS,
    )
    assert result.get_response().id == "42"
    assert said([result]) == over_http(both)


def said(results: list[Any]) -> dict[str, Any]:
    """What the responses say, in the form of the generate extension."""
    last = results[-1]
    names = {"model_name": last.get_response().model_name, "model_version": last.get_response().model_version}
    return names | {
        "text_output": "".join(result.as_numpy("text_output")[0].decode() for result in results),
        "finish_reason": last.as_numpy("finish_reason")[0].decode(),
        "num_input_tokens": int(last.as_numpy("num_input_tokens")[0]),
        "num_output_tokens": sum(int(result.as_numpy("num_output_tokens")[0]) for result in results),
    }


def is_last(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def test_a_stream_with_callbacks(both: Both, client: triton.InferenceServerClient) -> None:
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: arrived.put((result, error)), headers=HEADERS)
    for id in ("a", "b"):
        client.async_stream_infer(
            both.model,
            [tensor("text_input", "BYTES", PROMPT.encode()), tensor("stream", "BOOL", True), *FLAGS],
            request_id=id,
            parameters=PARAMETERS,
            enable_empty_final_response=True,
        )
    client.async_stream_infer("nope", [tensor("text_input", "BYTES", b"x")])
    results: dict[str, list[Any]] = {"a": [], "b": []}
    errors = []
    while not all(found and is_last(found[-1]) for found in results.values()) or not errors:
        result, error = arrived.get(timeout=60)
        if error is not None:
            errors.append(error.message())
        else:
            results[result.get_response().id].append(result)
    client.stop_stream()
    assert errors == ["Request for unknown model: 'nope' is not found"]
    assert said(results["a"]) == said(results["b"]) == over_http(both)


def test_the_asyncio_client(both: Both) -> None:
    asyncio.run(drive(both))


async def drive(both: Both) -> None:
    async def requests() -> Any:
        inputs = [tensor("text_input", "BYTES", PROMPT.encode()), *FLAGS]
        yield {"model_name": both.model, "inputs": inputs, "request_id": "1", "parameters": PARAMETERS}

    async with triton_aio.InferenceServerClient(both.rpc) as client:
        assert await client.is_server_ready()
        results = []
        async for result, error in client.stream_infer(requests(), headers=HEADERS):
            assert error is None
            results.append(result)
        assert is_last(results[-1])
        assert said(results) == over_http(both)
        text = [tensor("text_input", "BYTES", PROMPT.encode()), *FLAGS]
        whole = await client.infer(both.model, text, parameters=PARAMETERS, headers=HEADERS)
        assert said([whole]) == over_http(both)


def test_tensors_of_tensorrt_llm(both: Both, client: triton.InferenceServerClient) -> None:
    inputs = [
        tensor("text_input", "BYTES", PROMPT.encode()),
        tensor("max_tokens", "INT32", 12),
        tensor("temperature", "FP32", 0.0),
        tensor("random_seed", "UINT64", 7),
        tensor("stop_words", "BYTES", b""),
        tensor("beam_width", "INT32", 1),
        tensor("return_log_probs", "BOOL", True),
    ]
    result = client.infer(both.model, inputs, headers=HEADERS)
    assert result.as_numpy("text_output")[0].decode() == over_http(both)["text_output"]
    assert np.isclose(result.as_numpy("cum_log_probs")[0], result.as_numpy("output_log_probs").sum(), atol=1e-4)


def test_errors_are_statuses(both: Both, client: triton.InferenceServerClient) -> None:
    text = [tensor("text_input", "BYTES", PROMPT.encode())]
    statuses = {}
    calls = {
        "no key": lambda: client.infer(both.model, text),
        "no model": lambda: client.infer("nope", text, headers=HEADERS),
        "no input": lambda: client.infer(both.model, [], headers=HEADERS),
        "load": lambda: client.load_model(both.model, headers=HEADERS),
        "late": lambda: client.infer(
            both.model, text, headers=HEADERS, client_timeout=0.001, parameters={"max_tokens": 500}
        ),
    }
    for name, call in calls.items():
        with pytest.raises(InferenceServerException) as error:
            call()
        statuses[name] = error.value.status().removeprefix("StatusCode.")
    assert statuses == {
        "no key": "UNAUTHENTICATED",
        "no model": "NOT_FOUND",
        "no input": "INVALID_ARGUMENT",
        "load": "UNAVAILABLE",
        "late": "DEADLINE_EXCEEDED",
    }


# --- the messages -------------------------------------------------------------------------------------------------

PARTIAL = re.compile("ModelConfig|ModelInput|ModelOutput|ModelVersionPolicy")
"""Messages of which only some fields are described."""


def fields(message: Any) -> dict[str, Any]:
    return {field.name: described(field) for field in message.DESCRIPTOR.fields}


def described(field: FieldDescriptor) -> tuple[Any, ...]:
    oneof = field.containing_oneof.name if field.containing_oneof is not None else None
    inner = field.message_type or field.enum_type
    return field.number, field.type, field.is_repeated, oneof, inner.full_name if inner is not None else None


def theirs(name: str) -> Any:
    found: Any = service_pb2 if hasattr(service_pb2, name.split(".", maxsplit=1)[0]) else model_config_pb2
    for part in name.split("."):
        found = getattr(found, part)
    return found


MESSAGES = load(Path(schemas.__file__).parent / "triton_grpc.proto")


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_tritons(name: str) -> None:
    own, other = fields(MESSAGES[name]), fields(theirs(name))
    if PARTIAL.fullmatch(name.split(".", maxsplit=1)[0]):
        assert own.items() <= other.items()
    else:
        assert own == other


def test_enums_are_tritons() -> None:
    own = MESSAGES["ModelInput"].DESCRIPTOR.fields_by_name["data_type"].enum_type
    assert {value.name: value.number for value in own.values} == dict(model_config_pb2.DataType.items())
