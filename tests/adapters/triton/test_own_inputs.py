"""TensorRT-LLM's tensors, and inputs that an endpoint declares, in generate and infer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.base import Call
from adapters.fold import fold
from schemas.catalog import Catalog, ModelCard, OwnInput, TensorNames
from schemas.errors import InvalidRequest
from schemas.ir import Generate, TextPrompt, TokensPrompt
from tests.adapters.triton.cases import ANSWER, CLIENTS, ROUTES, SERVERS, decode

TYPES = {str: "BYTES", bool: "BOOL", int: "INT32", float: "FP32"}


def tensor(name: str, *values: Any, datatype: str = "") -> dict[str, Any]:
    datatype = datatype or TYPES[type(values[0])]
    return {"name": name, "datatype": datatype, "shape": [1, len(values)], "data": [list(values)]}


def infer(*inputs: dict[str, Any], **fields: Any) -> Generate:
    return decode(json.dumps({"inputs": [tensor("text_input", "x"), *inputs]} | fields), "infer")


def test_the_example_of_tensorrt_llm() -> None:
    body = {"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", "stop_words": ""}
    request = decode(json.dumps(body))
    assert (request.stopping.max_new_tokens, request.stopping.stop, request.sampling.bad_words) == (20, (), ())
    assert request.unknown == ()


def test_parameters_as_tensors_equal_those_of_generate() -> None:
    request = infer(
        tensor("max_tokens", 7),
        tensor("min_tokens", 2),
        tensor("temperature", 0.5),
        tensor("top_k", 4),
        tensor("top_p", 0.5),
        tensor("random_seed", 9, datatype="UINT64"),
        tensor("stop_words", "a", "b"),
        tensor("bad_words", "c", ""),
        tensor("end_id", 5),
        tensor("pad_id", 6),
        tensor("beam_width", 1),
        tensor("repetition_penalty", 1.5),
    )
    body = {
        "text_input": "x",
        "max_tokens": 7,
        "min_tokens": [2],
        "temperature": "0.5",
        "top_k": 4,
        "top_p": 0.5,
        "random_seed": 9,
        "stop_words": ["a", "b"],
        "bad_words": "c",
        "end_id": 5,
        "repetition_penalty": 1.5,
    }
    generated = decode(json.dumps(body))
    assert (request.sampling, request.stopping) == (generated.sampling, generated.stopping)
    assert request.sampling.seed == 9
    assert request.stopping.stop_token_ids == (5,)


def test_a_parameter_of_a_batch_is_the_same_for_all_prompts() -> None:
    inputs = [tensor("text_input", "x", "y"), tensor("max_tokens", 3, 3)]
    request = decode(json.dumps({"inputs": inputs}), "infer")
    assert (len(request.prompts), request.stopping.max_new_tokens) == (2, 3)
    inputs[1] = tensor("max_tokens", 3, 4)
    with pytest.raises(InvalidRequest, match="unexpected shape for input 'max_tokens'"):
        decode(json.dumps({"inputs": inputs}), "infer")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (tensor("beam_width", 2), "parameter 'beam_width' is not supported"),
        (tensor("return_context_logits", True), "input 'return_context_logits' is not supported"),
        (tensor("max_tokens", 0), "parameter 'max_tokens' must be in"),
        (tensor("max_tokens", "3"), "data-type is 'BYTES', but model 'mymodel' expects 'INT32'"),
        (tensor("max_tokens", True, datatype="INT32"), "attempt to access JSON non-integer as integer"),
        (tensor("input_ids", 3), "only one of the inputs 'text_input' and 'input_ids' may be given"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        infer(given)
    assert message in raised.value.message


def test_token_ids_are_a_prompt() -> None:
    assert decode('{"input_ids": [100, 200], "request_output_len": 4}').prompts == (TokensPrompt((100, 200)),)
    inputs = [tensor("input_ids", 1, 2, 0), tensor("input_lengths", 2)]
    request = decode(json.dumps({"inputs": inputs}), "infer")
    assert request.prompts == (TokensPrompt((1, 2)),)


def test_log_probabilities_under_tensorrt_llms_names() -> None:
    request = infer(tensor("return_log_probs", True), tensor("return_finish_reason", True))
    assert request.logprobs
    names = ["text_output", "finish_reason", "cum_log_probs", "output_log_probs"]
    assert [output.name for output in request.outputs] == names
    reply = SERVERS["triton"].encode(request, fold(ANSWER))
    outputs = {output["name"]: output for output in json.loads(reply.body)["outputs"]}
    assert outputs["output_log_probs"]["shape"] == [4]
    assert outputs["cum_log_probs"]["datatype"] == "FP32"


CARD = ModelCard(
    name="own",
    tensors=TensorNames(
        {"PROMPT": "text_input", "STREAM": "stream"},
        {},
        {"STREAM": OwnInput(required=True), "session": OwnInput("INT32"), "tags": OwnInput("BYTES", (-1,))},
    ),
)


def ask(**body: Any) -> Generate:
    call = Call("r", Catalog({"own": CARD}), {"model": "own"})
    return SERVERS["triton"].decode(ROUTES["generate_stream"], json.dumps(body).encode(), call)


def test_declared_inputs() -> None:
    request = ask(PROMPT="x", STREAM=True, session=7, tags=["a", "b"])
    assert request.prompts == (TextPrompt("x"),)
    assert request.unknown == ()
    assert request.extra == {"session": 7, "tags": ["a", "b"]}
    sent = json.loads(CLIENTS["triton"].encode(request).body)
    assert json.loads(sent["sampling_parameters"])["session"] == 7


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"PROMPT": "x"}, "but missing required input(s) ['STREAM']"),
        ({"PROMPT": "x", "STREAM": True, "session": "7"}, "attempt to access JSON non-integer as integer"),
        ({"PROMPT": "x", "STREAM": True, "session": [7, 8]}, "can not convert input 'session'"),
    ],
)
def test_declared_inputs_are_checked(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask(**body)
    assert message in raised.value.message


def test_declared_inputs_are_described() -> None:
    call = Call("r", Catalog({"own": CARD}), {"model": "own"})
    found = json.loads(SERVERS["triton"].describe(ROUTES["config"], call, b"").body)["input"]
    described = {each["name"]: (each["data_type"], each["dims"], each["optional"]) for each in found}
    assert described["STREAM"] == ("TYPE_BOOL", [1], False)
    assert described["session"] == ("TYPE_INT32", [1], True)
    assert described["tags"] == ("TYPE_STRING", [-1], True)
