"""Infer: tensors as JSON and as bytes, in requests and answers."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from adapters.fold import fold
from schemas.errors import InvalidRequest, MalformedBody
from schemas.ir import (
    Finished,
    FinishReason,
    Generate,
    ImagePart,
    Output,
    Sampling,
    Started,
    TextPrompt,
    Token,
    TopToken,
    Usage,
)
from tests.adapters.triton.cases import ANSWER, SERVERS, decode


def text_tensor(*texts: str, **replaced: Any) -> dict[str, Any]:
    return {"name": "text_input", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)} | replaced


def flag(name: str, value: Any = True) -> dict[str, Any]:
    return {"name": name, "datatype": "BOOL", "shape": [1], "data": [value]}


def binary(body: dict[str, Any], *data: bytes) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(body).encode()
    return head + b"".join(data), {"inference_header_content_length": str(len(head))}


def packed(*texts: str) -> bytes:
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def infer(body: dict[str, Any], **headers: str) -> Generate:
    return decode(json.dumps(body), "infer", **headers)


def test_json() -> None:
    request = infer({"id": "42", "inputs": [text_tensor("hi")], "parameters": {"temperature": 0, "max_tokens": 3}})
    assert request.prompts == (TextPrompt("hi"),)
    assert request.sampling == Sampling(do_sample=False, temperature=0.0)
    assert request.stopping.max_new_tokens == 3
    assert request.client_request_id == "42"
    assert request.outputs == (Output("text_output", "text_output"),)
    assert not request.stream


@pytest.mark.parametrize(
    ("shape", "data"),
    [([2], ["a", "b"]), ([2, 1], ["a", "b"]), ([2, 1], [["a"], ["b"]]), ([1, 2], [["a", "b"]])],
)
def test_a_batch_of_texts_is_several_prompts(shape: list[int], data: list[Any]) -> None:
    request = infer({"inputs": [text_tensor(shape=shape, data=data)]})
    assert request.prompts == (TextPrompt("a"), TextPrompt("b"))


def test_binary() -> None:
    body = {
        "inputs": [
            text_tensor("", "", parameters={"binary_data_size": 12}) | {"data": None},
            flag("return_finish_reason"),
            {"name": "stream", "datatype": "BOOL", "shape": [1], "parameters": {"binary_data_size": 1}},
            {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 8}},
        ],
        "parameters": {"binary_data_output": True},
    }
    data, headers = binary(body, packed("hé", "\n"), b"\x00", packed("aGk="))
    request = decode(data, "infer", **headers)
    images = (ImagePart("aGk=", "data"),)
    assert request.prompts == (TextPrompt("hé", images), TextPrompt("\n", images))
    assert request.outputs == (
        Output("text_output", "text_output", True),
        Output("finish_reason", "finish_reason", True),
    )


def test_outputs_by_name() -> None:
    outputs = [
        {"name": "logprobs", "parameters": {"binary_data": False}},
        {"name": "TEXT"},
    ]
    body = {
        "inputs": [text_tensor("hi", name="PROMPT")],
        "outputs": outputs,
        "parameters": {"binary_data_output": True},
    }
    request = infer(body, model="mock_llm")
    assert request.outputs == (Output("logprobs", "logprobs"), Output("text_output", "TEXT", True))
    assert request.logprobs


def test_scheduling_parameters_are_ignored() -> None:
    parameters = {"sequence_id": 1, "sequence_start": True, "sequence_end": False, "priority": 1, "new": 0.5}
    request = infer({"inputs": [text_tensor("hi")], "parameters": parameters})
    assert request.extra == {"priority": 1, "new": 0.5}


def test_several_choices() -> None:
    request = infer({"inputs": [text_tensor("a", "b")], "parameters": {"n": 2}})
    answer = fold(
        (
            Started("mymodel", 2),
            *(Finished(index, str(index), reason=FinishReason.LENGTH, generated=1) for index in range(4)),
            Usage(2, 4),
        )
    )
    output = json.loads(SERVERS["triton"].encode(request, answer).body)["outputs"][0]
    assert (output["shape"], output["data"]) == ([4], ["0", "1", "2", "3"])


def test_all_outputs_as_bytes() -> None:
    tokens = (Token(5, "Hi", -0.5, top=(TopToken(5, "Hi", -0.5), TopToken(6, "Ho", -1.5))), Token(7, "!", -0.25))
    events = (Started("mymodel", 3), Finished(0, "Hi!", tokens, reason=FinishReason.EOS, generated=2), Usage(3, 2))
    names = ["num_output_tokens", "num_input_tokens", "cumulative_logprob", "finish_reason", "text_output"]
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in names]
    request = infer({"inputs": [text_tensor("hi")], "outputs": [*outputs, {"name": "logprobs"}], "id": "7"})
    reply = SERVERS["triton"].encode(request, fold(events))
    assert reply.media_type == "application/octet-stream"
    (header,) = reply.headers
    assert header[0] == "Inference-Header-Content-Length"
    head, data = reply.body[: int(header[1])], reply.body[int(header[1]) :]
    sizes = {"binary_data_size": 4}
    logprobs = (
        '[{"5":{"logprob":-0.5,"rank":1,"decoded_token":"Hi"},"6":{"logprob":-1.5,"rank":2,"decoded_token":"Ho"}},'
        '{"7":{"logprob":-0.25,"rank":null,"decoded_token":"!"}}]'
    )
    assert json.loads(head) == {
        "id": "7",
        "model_name": "mymodel",
        "model_version": "1",
        "outputs": [
            {"name": "num_output_tokens", "datatype": "UINT32", "shape": [1], "parameters": sizes},
            {"name": "num_input_tokens", "datatype": "UINT32", "shape": [1], "parameters": sizes},
            {"name": "cumulative_logprob", "datatype": "FP32", "shape": [1], "parameters": sizes},
            {"name": "finish_reason", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 8}},
            {"name": "text_output", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 7}},
            {"name": "logprobs", "datatype": "BYTES", "shape": [1], "data": [logprobs]},
        ],
    }
    assert data == struct.pack("<IIf", 2, 3, -0.75) + packed("stop", "Hi!")


def test_the_answer_has_the_prompt_if_requested() -> None:
    request = infer({"inputs": [text_tensor("a"), flag("exclude_input_in_output", False)]})
    output = json.loads(SERVERS["triton"].encode(request, fold(ANSWER)).body)["outputs"][0]
    assert output["data"] == ['aHello "w\nörld']


MALFORMED = [
    ({}, "Missing required parameter: 'inputs'."),
    (
        {"inputs": [text_tensor("a") | {"shape": "x"}]},
        "Invalid type for 'inputs[0].shape': expected an array, but got a string instead.",
    ),
    ({"inputs": [text_tensor("a")], "id": 3}, "Invalid type for 'id': expected a string, but got an integer instead."),
    (
        {"inputs": []},
        "expected number of inputs between 1 and 33 but got 0 inputs for model 'mymodel'. Got input(s) [], "
        "but missing required input(s) ['text_input']. Please provide all required input(s).",
    ),
    (
        {"inputs": [text_tensor()]},
        "expected number of inputs between 1 and 33 but got 1 inputs for model 'mymodel'. Got input(s) "
        "['text_input'], but missing required input(s) ['text_input']. Please provide all required input(s).",
    ),
    ({"inputs": [text_tensor("a", name="x")]}, "unexpected inference input 'x' for model 'mymodel'"),
    ({"inputs": [text_tensor("a"), text_tensor("a")]}, "input 'text_input' already exists in request"),
    (
        {"inputs": [text_tensor("a", datatype="INT32")]},
        "inference input 'text_input' data-type is 'INT32', but model 'mymodel' expects 'BYTES'",
    ),
    (
        {"inputs": [text_tensor("a", data=None)]},
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        "'shared_memory_region' in 'parameters'. But no field is set",
    ),
    (
        {"inputs": [text_tensor("a", parameters={"binary_data_size": 5})]},
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        "'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size'",
    ),
    (
        {"inputs": [text_tensor("a", data=None, parameters={"shared_memory_region": "r"})]},
        "shared memory is not supported for input 'text_input'",
    ),
    (
        {"inputs": [text_tensor("a", data=None, parameters={"binary_data_size": -1})]},
        "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    (
        {"inputs": [text_tensor("a", data=None, parameters={"binary_data_size": 5})]},
        "unexpected size for input 'text_input', expecting 5 additional bytes for model 'mymodel'",
    ),
    ({"inputs": [text_tensor("a", data=[1])]}, "Unable to parse 'data': attempt to access JSON non-string as string"),
    (
        {"inputs": [text_tensor("a"), flag("stream", 1)]},
        "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
    ),
    (
        {"inputs": [text_tensor("a", shape=[2])]},
        "Failed to parse 'data' field: shape does not match true shape of input 'text_input'",
    ),
    (
        {"inputs": [text_tensor("a", shape=[1 << 62] * 8)]},
        "Failed to parse 'data' field: shape does not match true shape of input 'text_input'",
    ),
    (
        {"inputs": [text_tensor("a"), flag("stream") | {"shape": [2], "data": [True, False]}]},
        "unexpected shape for input 'stream' for model 'mymodel'. Expected [1], got [2].",
    ),
    (
        {"inputs": [text_tensor("a")], "outputs": [{"name": "x"}]},
        "unexpected inference output 'x' for model 'mymodel'",
    ),
    (
        {"inputs": [text_tensor("a")], "outputs": [{"name": "text_output", "parameters": {"classification": 3}}]},
        "classification is not supported for output 'text_output'",
    ),
    (
        {"inputs": [text_tensor("a")], "outputs": [{"name": "text_output", "parameters": {"binary_data": 1}}]},
        "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
    ),
    (
        {"inputs": [text_tensor("a")], "parameters": {"triton_x": 1}},
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    (
        {"inputs": [text_tensor("a")], "parameters": {"x": None}},
        "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
]


@pytest.mark.parametrize(("body", "message"), MALFORMED)
def test_refusals(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        infer(body)
    assert error.value.message == message


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        (b"", 5, "unexpected size for input 'text_input', expecting 5 additional bytes for model 'mymodel'"),
        (b"\x01\x00", 2, "expecting 4 bytes of string length indicator but only 2 bytes available"),
        (b"\x05\x00\x00\x00a", 5, "expecting a string of 5 bytes but only 1 bytes available"),
        (b"\x01\x00\x00\x00\xff", 5, "input 'text_input' is not valid UTF-8"),
        (packed("a", "b"), 10, "shape does not match"),
        (packed("a") + b"x", 5, "unexpected additional input data for model 'mymodel'"),
    ],
)
def test_binary_refusals(data: bytes, size: int, message: str) -> None:
    tensor = text_tensor("a", data=None, parameters={"binary_data_size": size})
    body, headers = binary({"inputs": [tensor]}, data)
    with pytest.raises(InvalidRequest) as error:
        decode(body, "infer", **headers)
    assert message in error.value.message


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("x", "Unable to parse Inference-Header-Content-Length, got: x"),
        ("9" * 40, "Unable to parse Inference-Header-Content-Length, got: " + "9" * 32),
        ("-1", "inference header size should be in range (0, 2), got: -1"),
        ("0", "inference header size should be in range (0, 2), got: 0"),
        ("3", "inference header size should be in range (0, 2), got: 3"),
    ],
)
def test_header_length(header: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        decode(b"{}", "infer", inference_header_content_length=header)
    assert error.value.message == message


def test_bytes_without_the_header_are_not_json() -> None:
    with pytest.raises(MalformedBody):
        decode(json.dumps({"inputs": [text_tensor("a")]}).encode() + packed("a"), "infer")
