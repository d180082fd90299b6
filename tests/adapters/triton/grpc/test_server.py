"""The codec of gRPC: what it reads is what the codec of HTTP reads, and what it writes says the same."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest

from adapters.base import Call
from adapters.fold import fold
from adapters.triton import tensors
from adapters.triton.dialects import DIALECTS
from adapters.triton.grpc import failures, read
from adapters.triton.grpc.messages import MESSAGES
from adapters.triton.grpc.server import TritonRpc
from schemas.errors import KINDS, InvalidRequest, MalformedBody, ModelNotFound
from schemas.ir import Delta, Generate, TextPrompt, Usage
from tests.adapters.triton.cases import ANSWER, CATALOG, decode
from tests.adapters.triton.test_failures import SAMPLES

CODEC = TritonRpc(DIALECTS["triton"])
ROUTES = {route.name: route for route in CODEC.routes}
CALL = Call("req-1", CATALOG)

TENSORS = [
    {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["hé"]},
    {"name": "return_finish_reason", "datatype": "BOOL", "shape": [1], "data": [True]},
    {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [3]},
    {"name": "temperature", "datatype": "FP32", "shape": [1], "data": [0.5]},
    {"name": "random_seed", "datatype": "UINT64", "shape": [1], "data": [1 << 63]},
]
FORMATS = {"BOOL": "?", "INT32": "i", "FP32": "f", "UINT64": "Q"}
CONTENTS = {"BYTES": "bytes_contents", "BOOL": "bool_contents", "INT32": "int_contents"}
CONTENTS |= {"FP32": "fp32_contents", "UINT64": "uint64_contents"}


def request(*inputs: dict[str, Any], raw: bool = True, **fields: Any) -> Any:
    message = MESSAGES["ModelInferRequest"](**({"model_name": "mymodel"} | fields))
    for each in inputs:
        tensor = message.inputs.add(name=each["name"], datatype=each["datatype"], shape=each["shape"])
        values = [value.encode() if isinstance(value, str) else value for value in each["data"]]
        if not raw:
            getattr(tensor.contents, CONTENTS[each["datatype"]]).extend(values)
        elif each["datatype"] == "BYTES":
            message.raw_input_contents.append(b"".join(struct.pack("<I", len(value)) + value for value in values))
        else:
            message.raw_input_contents.append(struct.pack(f"<{len(values)}{FORMATS[each['datatype']]}", *values))
    return message


def read_request(message: Any, method: str = "ModelInfer") -> Generate:
    route = next(route for route in CODEC.routes if route.path.endswith(f"/{method}"))
    return CODEC.decode(route, message.SerializeToString(), CALL)


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "contents"])
def test_tensors_mean_what_they_mean_over_http(raw: bool) -> None:
    message = request(*TENSORS, raw=raw, id="42")
    message.parameters["top_k"].int64_param = 4
    message.outputs.add(name="text_output")
    found = read_request(message)
    body = {"id": "42", "inputs": TENSORS, "parameters": {"top_k": 4}, "outputs": [{"name": "text_output"}]}
    wanted = decode(json.dumps(body), "infer")
    assert msgspec.structs.replace(found, origin=None) == msgspec.structs.replace(wanted, origin=None)
    assert found.prompts == (TextPrompt("hé"),)


def test_a_stream_may_ask_for_an_empty_last_response() -> None:
    message = request(*TENSORS[:1])
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    found = read_request(message, "ModelStreamInfer")
    assert found.stream
    assert not found.unknown


def test_the_input_stream_may_ask_for_one_response() -> None:
    flag = {"name": "stream", "datatype": "BOOL", "shape": [1], "data": [False]}
    assert not read_request(request(TENSORS[0], flag), "ModelStreamInfer").stream


def both() -> Any:
    message = request(TENSORS[0])
    message.inputs[0].contents.bytes_contents.append(b"x")
    return message


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (request(TENSORS[0], model_version="x"), "version string 'x'"),
        (MESSAGES["ModelInferRequest"](model_name="mymodel", raw_input_contents=[b"a"]), "expected 0 or 0 raw input"),
        (both(), "contents field must not be specified"),
        (
            request({"name": "nope", "datatype": "BYTES", "shape": [1], "data": ["a"]}),
            "unexpected inference input 'nope'",
        ),
        (
            request({"name": "text_input", "datatype": "INT32", "shape": [1], "data": [1]}, raw=False),
            "data-type is 'INT32'",
        ),
        (request(TENSORS[0] | {"shape": [2]}), "shape does not match"),
    ],
)
def test_invalid_requests(message: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        read_request(message)


def test_texts_are_utf_8() -> None:
    message = request(TENSORS[0], raw=False)
    message.inputs[0].contents.bytes_contents[0] = b"\xff"
    with pytest.raises(InvalidRequest, match="not valid UTF-8"):
        read_request(message)


def test_bytes_that_are_no_request() -> None:
    with pytest.raises(MalformedBody, match="no ModelInferRequest"):
        read.read(b"\xff\xff\xff")
    with pytest.raises(ModelNotFound):
        read_request(request(TENSORS[0], model_name="nope"))
    with pytest.raises(ModelNotFound):
        read_request(request(TENSORS[0], model_version="2"))


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"\x2a\x00" * 1_000_001,
        b"\x22\x00" * 1_000_001,
        b"\x2a\x86\x89\x7a" + b"\x2a\x82\x89\x7a\x0a\xfe\x88\x7a" + bytes(1 << 21),
    ],
    ids=["inputs", "parameters", "packed numbers"],
)
def test_a_request_has_a_bounded_number_of_parts(body: bytes) -> None:
    with pytest.raises(MalformedBody, match="parts"):
        read.read(body)


def test_a_large_text_has_few_parts() -> None:
    text = "x" * (1 << 17)
    found = read_request(request(TENSORS[0] | {"data": [text]}))
    assert found.prompts == (TextPrompt(text),)


# --- answers ------------------------------------------------------------------------------------------------------


def parts(data: bytes) -> list[Any]:
    found = []
    while data:
        assert data[0] == 0
        size = int.from_bytes(data[1:5], "big")
        found.append(MESSAGES["ModelStreamInferResponse"].FromString(data[5 : 5 + size]))
        data = data[5 + size :]
    return found


def text(raw: bytes) -> str:
    return raw[4:].decode()


def test_a_whole_answer() -> None:
    flags = [
        {"name": f"return_{name}", "datatype": "BOOL", "shape": [1], "data": [True]}
        for name in ("num_output_tokens", "log_probs")
    ]
    found = read_request(request(*TENSORS[:2], *flags, id="42"))
    reply = CODEC.encode(found, fold(ANSWER))
    assert reply.media_type == "application/grpc"
    answer = MESSAGES["ModelInferResponse"].FromString(reply.body[5:])
    assert (answer.model_name, answer.model_version, answer.id) == ("mymodel", "1", "42")
    assert not answer.parameters
    described = [(output.name, output.datatype, list(output.shape)) for output in answer.outputs]
    assert described[:3] == [
        ("text_output", "BYTES", [1]),
        ("finish_reason", "BYTES", [1]),
        ("num_output_tokens", "UINT32", [1]),
    ]
    assert described[-1] == ("output_log_probs", "FP32", [4])
    raw = list(answer.raw_output_contents)
    assert [text(raw[0]), text(raw[1])] == ['Hello "w\nörld', "stop"]
    assert struct.unpack("<I", raw[2]) == (4,)


def test_a_stream_ends_with_its_final_response() -> None:
    found = read_request(request(*TENSORS[:2], id="42"), "ModelStreamInfer")
    encoder = CODEC.encoder(found)
    responses = [each.infer_response for each in parts(b"".join(encoder.feed((event,)) for event in ANSWER))]
    assert [each.parameters["triton_final_response"].bool_param for each in responses] == [False, False, True]
    assert [text(each.raw_output_contents[0]) for each in responses] == ["Hello", ' "w\n', "örld"]
    assert [text(each.raw_output_contents[1]) for each in responses] == ["None", "None", "stop"]
    assert {each.id for each in responses} == {"42"}
    assert all([output.name for output in each.outputs] == ["text_output", "finish_reason"] for each in responses)


@pytest.mark.parametrize("given", [TENSORS[:1], TENSORS[:2]], ids=["text alone", "with a reason"])
def test_what_comes_together_is_one_response(given: list[dict[str, Any]]) -> None:
    encoder = CODEC.encoder(read_request(request(*given), "ModelStreamInfer"))
    (only,) = parts(encoder.feed(ANSWER))
    assert only.infer_response.parameters["triton_final_response"].bool_param
    assert text(only.infer_response.raw_output_contents[0]) == 'Hello "w\nörld'


def test_choices_and_refusals_stay_apart() -> None:
    n = {"name": "num_return_sequences", "datatype": "INT32", "shape": [1], "data": [2]}
    encoder = CODEC.encoder(read_request(request(TENSORS[0], n), "ModelStreamInfer"))
    found = parts(
        encoder.feed((Delta(0, "a"), Delta(0, "b", refusal="!"), Delta(0, "c"), Delta(1, "d"), Delta(0, "e")))
    )
    raws = [each.infer_response.raw_output_contents[0] for each in found]
    assert [tensors.unpack("BYTES", raw) for raw in raws] == [["ab!", ""], ["c", ""], ["", "d"], ["e", ""]]


def test_a_stream_without_steps_has_one_response() -> None:
    flag = {"name": "stream", "datatype": "BOOL", "shape": [1], "data": [False]}
    found = read_request(request(TENSORS[0], flag), "ModelStreamInfer")
    (only,) = parts(CODEC.encode(found, fold(ANSWER)).body)
    assert only.infer_response.parameters["triton_final_response"].bool_param
    assert text(only.infer_response.raw_output_contents[0]) == 'Hello "w\nörld'


def test_long_texts_and_unknown_counts() -> None:
    """Lengths of more than a byte, and an output that is known at the end only."""
    flag = {"name": "return_num_input_tokens", "datatype": "BOOL", "shape": [1], "data": [True]}
    found = read_request(request(TENSORS[0], flag), "ModelStreamInfer")
    encoder = CODEC.encoder(found)
    started = msgspec.structs.replace(ANSWER[0], prompt_tokens=None)
    long = msgspec.structs.replace(ANSWER[1], text="ü" * 100_000)
    data = encoder.feed((started, long)) + encoder.feed((*ANSWER[3:-1], Usage(3, 4)))
    first, last = (each.infer_response for each in parts(data))
    assert [output.name for output in first.outputs] == ["text_output"]
    assert text(first.raw_output_contents[0]) == long.text
    assert [output.name for output in last.outputs] == ["text_output", "num_input_tokens"]


# --- errors, and what is served -----------------------------------------------------------------------------------

GRPC = {
    "invalid_request": 3,
    "malformed_body": 3,
    "unsupported": 12,
    "context_length": 3,
    "unauthorized": 16,
    "forbidden": 7,
    "model_not_found": 5,
    "route_not_found": 12,
    "method_not_allowed": 12,
    "conflict": 9,
    "body_too_large": 8,
    "unsupported_media_type": 3,
    "request_timeout": 4,
    "rate_limited": 8,
    "overloaded": 14,
    "shutting_down": 14,
    "backend_failed": 13,
    "backend_unavailable": 14,
    "timeout": 4,
    "incomplete": 13,
    "internal": 13,
}


def test_every_kind_of_error_has_a_status() -> None:
    assert list(GRPC) == list(KINDS)
    for kind, error in SAMPLES.items():
        headers = dict(CODEC.error(error).headers)
        assert headers["grpc-status"] == str(GRPC[kind]), kind
        assert headers["grpc-message"]
    assert dict(CODEC.error(SAMPLES["rate_limited"]).headers)["Retry-After"] == "1"


def test_an_error_in_a_stream_names_its_request() -> None:
    body = request(TENSORS[0], id="42").SerializeToString()
    (found,) = parts(CODEC.stream_error("bad", body))
    assert (found.error_message, found.infer_response.id) == ("bad", "42")
    (found,) = parts(CODEC.stream_error("bad", b"\xff"))
    assert found.error_message == "bad"
    encoder = CODEC.encoder(read_request(request(TENSORS[0], id="7"), "ModelStreamInfer"))
    (found,) = parts(encoder.fail(SAMPLES["incomplete"]))
    assert (found.error_message, found.infer_response.id) == ("cut", "7")


def describe(method: str, **fields: Any) -> Any:
    body = MESSAGES[f"{method}Request"](**fields).SerializeToString()
    reply = CODEC.describe(ROUTES[method], CALL, body)
    return MESSAGES[f"{method}Response"].FromString(reply.body[5:])


def test_what_is_served() -> None:
    assert describe("ServerLive").live
    assert not describe("ServerReady").ready  # the model `loading` is not
    assert describe("ModelReady", name="mymodel", version="1").ready
    assert not describe("ModelReady", name="loading").ready
    assert not describe("ModelReady", name="nope").ready
    assert describe("ServerMetadata").name == "interlingua"
    metadata = describe("ModelMetadata", name="mymodel")
    assert [(metadata.inputs[0].name, metadata.inputs[0].datatype, list(metadata.inputs[0].shape))] == [
        ("text_input", "BYTES", [-1])
    ]
    config = describe("ModelConfig", name="mock_llm").config
    assert config.model_transaction_policy.decoupled
    assert [config.input[0].name, config.input[0].data_type, config.output[0].name] == ["PROMPT", 13, "TEXT"]
    assert config.input[1].optional
    (stats,) = describe("ModelStatistics", name="mymodel").model_stats
    assert (stats.inference_count, stats.inference_stats.fail.ns) == (7, 5_000_000)
    assert len(describe("ModelStatistics").model_stats) == 3
    assert [each.name for each in describe("RepositoryIndex", ready=True).models] == ["mymodel", "mock_llm"]
    assert [each.state for each in describe("RepositoryIndex").models] == ["READY", "READY", "UNAVAILABLE"]
    with pytest.raises(ModelNotFound):
        describe("ModelMetadata", name="nope")


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
def test_models_are_not_controlled(method: str) -> None:
    reply = CODEC.describe(ROUTES[method], CALL, b"")
    assert dict(reply.headers)["grpc-status"] == str(failures.UNAVAILABLE)
