"""Bodies of the generate extension: their meaning, and the messages of refusals."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.dialect import with_options
from adapters.triton import ADAPTER
from schemas.errors import InvalidRequest, MalformedBody, ModelNotFound, RouteNotFound
from schemas.ir import Generate, ImagePart, Origin, Sampling, Stopping, TextPrompt
from tests.adapters.triton.cases import ROUTES, SERVERS, call, decode


def test_the_example_of_tritons_documentation() -> None:
    body = '{"id": "42", "text_input": "client input", "parameters": {"stream": false, "temperature": 0}}'
    request = decode(body)
    assert request == Generate(
        id="req-1",
        model="mymodel",
        prompts=(TextPrompt("client input"),),
        sampling=Sampling(do_sample=False, temperature=0.0),
        stopping=Stopping(max_new_tokens=16),
        client_request_id="42",
        outputs=request.outputs,
        origin=Origin("triton", "triton", "generate", body.encode()),
    )


def test_a_request_of_litellm() -> None:
    request = decode(
        '{"text_input": "hi", "parameters": {"max_tokens": 2000, "temperature": 0.7}, "stream": true}',
        "generate_stream",
    )
    assert request.stream
    assert request.stopping.max_new_tokens == 2000
    assert request.sampling == Sampling(do_sample=True, temperature=0.7)


def test_defaults_are_vllms() -> None:
    request = decode('{"text_input": "hi"}')
    assert request.sampling == Sampling(do_sample=True, temperature=1.0)
    assert request.stopping == Stopping(max_new_tokens=16)
    assert not request.echo
    assert not request.stream
    assert request.client_request_id is None


@pytest.mark.parametrize(
    ("body", "operation", "stream"),
    [
        ('{"text_input": "x"}', "generate", False),
        ('{"text_input": "x", "stream": true}', "generate", False),  # the URL promises one response
        ('{"text_input": "x"}', "generate_stream", True),
        ('{"text_input": "x", "stream": true}', "generate_stream", True),
        ('{"text_input": "x", "stream": [true]}', "generate_stream", True),
        ('{"text_input": "x", "parameters": {"stream": false}}', "generate_stream", False),
    ],
)
def test_stream(body: str, operation: str, stream: bool) -> None:
    assert decode(body, operation).stream is stream


def test_parameters_may_stand_outside_and_inputs_inside() -> None:
    request = decode('{"temperature": 0.5, "parameters": {"text_input": "x", "top_k": 3}}')
    assert request.prompts == (TextPrompt("x"),)
    assert request.sampling == Sampling(do_sample=True, temperature=0.5, top_k=3)


def test_unknown_parameters_are_kept() -> None:
    request = decode('{"id": "1", "text_input": "x", "a": 1, "parameters": {"b": "two", "c": true, "d": 0.5, "id": 9}}')
    assert request.extra == {"a": 1, "b": "two", "c": True, "d": 0.5, "id": 9}


def test_of_a_parameter_given_twice_the_first_value_counts() -> None:
    assert decode('{"text_input": "x", "top_k": 1, "top_k": 2}').sampling.top_k == 1


@pytest.mark.parametrize(
    ("body", "id"),
    [
        ('{"text_input": "x", "id": "42"}', "42"),
        ('{"text_input": "x", "id": ""}', None),
        ('{"text_input": "x", "id": "1", "id": "2"}', "1"),
    ],
)
def test_id(body: str, id: str | None) -> None:
    assert decode(body).client_request_id == id


def test_images() -> None:
    request = decode('{"text_input": "what?", "image": ["aGk=", "eW8="]}')
    assert request.prompts == (TextPrompt("what?", (ImagePart("aGk=", "data"), ImagePart("eW8=", "data"))),)
    assert decode('{"text_input": "what?", "image": "aGk="}').prompts[0].images == (ImagePart("aGk=", "data"),)


def test_the_answer_has_the_prompt_if_requested() -> None:
    assert decode('{"text_input": "x", "exclude_input_in_output": false}').echo
    assert not decode('{"text_input": "x", "exclude_input_in_output": true}').echo


def test_an_endpoint_may_echo_by_default() -> None:
    dialect = with_options(ADAPTER.dialects["triton"], {"exclude_input_by_default": False})
    server = ADAPTER.server(dialect)
    assert server.decode(ROUTES["generate"], b'{"text_input": "x"}', call()).echo
    assert not server.decode(ROUTES["generate_stream"], b'{"text_input": "x"}', call()).echo


@pytest.mark.parametrize(
    ("flag", "tensor"),
    [
        ("return_finish_reason", "finish_reason"),
        ("return_cumulative_logprob", "cumulative_logprob"),
        ("return_logprobs", "logprobs"),
        ("return_num_input_tokens", "num_input_tokens"),
        ("return_num_output_tokens", "num_output_tokens"),
    ],
)
def test_requested_outputs(flag: str, tensor: str) -> None:
    request = decode(json.dumps({"text_input": "x", flag: True}))
    assert [output.tensor for output in request.outputs] == ["text_output", tensor]
    assert request.logprobs == ("logprob" in tensor)
    assert request.stream_usage == ("num" in tensor)
    assert len(decode(json.dumps({"text_input": "x", flag: False})).outputs) == 1


def test_sampling_parameters_are_json_and_may_hold_arrays() -> None:
    inner = json.dumps({"temperature": "0.1", "stop": ["a", "b"], "stop_token_ids": [1, 2], "new": [1]})
    request = decode(json.dumps({"text_input": "x", "sampling_parameters": inner, "top_k": 4}))
    assert request.sampling == Sampling(do_sample=True, temperature=0.1, top_k=4)
    assert request.stopping.stop == ("a", "b")
    assert request.stopping.stop_token_ids == (1, 2)
    assert request.extra == {"new": [1]}


# --- an endpoint with names of its own: the cases of Triton's own test of generate -------------------------------


@pytest.mark.parametrize(
    "body",
    [
        '{"PROMPT": "hello world", "STREAM": false}',
        '{"PROMPT": ["hello world"], "STREAM": false, "REPETITION": 3}',
        '{"PROMPT": "hello world", "STREAM": true, "param": "segfault"}',
    ],
)
def test_own_names(body: str) -> None:
    assert decode(body, model="mock_llm").prompts == (TextPrompt("hello world"),)


STRING = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
BOOLEAN = "Unable to parse 'data': attempt to access JSON non-boolean as boolean"


@pytest.mark.parametrize("operation", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "{}",
            "expected number of inputs between 1 and 33 but got 0 inputs for model 'mock_llm'. Got input(s) [], "
            "but missing required input(s) ['PROMPT']. Please provide all required input(s).",
        ),
        (
            '{"STREAM": false, "other": "param"}',
            "expected number of inputs between 1 and 33 but got 1 inputs for model 'mock_llm'. "
            "Got input(s) ['STREAM'], but missing required input(s) ['PROMPT']. Please provide all required input(s).",
        ),
        ('{"PROMPT": 123, "STREAM": false}', STRING),
        ('{"PROMPT": "hello", "STREAM": "false"}', BOOLEAN),
        ('{"PROMPT": true, "STREAM": 123}', STRING),
        ('{"STREAM": 123, "PROMPT": true}', BOOLEAN),
        ('{"PROMPT": {"USER": "hello world", "BOT": "world hello"}, "STREAM": true}', STRING),
        ('{"PROMPT": "hello", "STREAM": false, "PROMPT": "twice"}', "input 'PROMPT' already exists in request"),
        ('{"PROMPT": "hello", "STREAM": false, "STREAM": false}', "input 'STREAM' already exists in request"),
        (
            '{"PROMPT": "h", "STREAM": false, "STREAM": true, "PROMPT": "twice"}',
            "input 'STREAM' already exists in request",
        ),
        (
            '{"PROMPT": "h", "PARAMS": {"PARAM_0": 0}}',
            "parameter 'PARAMS' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            '{"PROMPT": "h", "parameters": {"STREAM": true}, "STREAM": true}',
            "input 'STREAM' already exists in request",
        ),
        (
            '{"PROMPT": ["a", "b"]}',
            "The schema can not convert input 'PROMPT' to tensor with proper shape",
        ),
    ],
)
def test_refusals_use_the_endpoints_own_names(body: str, message: str, operation: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        decode(body, operation, model="mock_llm")
    assert error.value.message == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[]", "attempt to get members for non-object"),
        ('"text"', "attempt to get members for non-object"),
        ('{"text_input": "x", "id": 3}', "Unable to parse 'id': attempt to access JSON non-string as string"),
        (
            '{"text_input": "x", "parameters": 3}',
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        (
            '{"text_input": "x", "parameters": [["a", 1]]}',
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        (
            '{"text_input": "x", "parameters": null}',
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        (
            '{"text_input": "x", "parameters": {"seed": null}}',
            "Converting keyword: 'parameters': parameter 'seed' has invalid type. "
            "It should be either 'int', 'bool', or 'string'.",
        ),
        (
            '{"text_input": "x", "parameters": {"parameters": {}}}',
            "Converting keyword: 'parameters': parameter 'parameters' has invalid type. "
            "It should be either 'int', 'bool', or 'string'.",
        ),
        (
            '{"text_input": "x", "stop": ["a"]}',
            "parameter 'stop' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            '{"text_input": "x", "parameters": {"text_input": "y"}}',
            "Converting keyword: 'parameters': input 'text_input' already exists in request",
        ),
        ('{"text_input": []}', "The schema can not convert input 'text_input' to tensor with proper shape"),
        (
            '{"text_input": "x", "stream": [true, false]}',
            "The schema can not convert input 'stream' to tensor with proper shape",
        ),
        (
            '{"text_input": "x", "sampling_parameters": "{"}',
            "Unable to parse 'sampling_parameters': The request body is not valid JSON: Input data was truncated",
        ),
        (
            '{"text_input": "x", "sampling_parameters": "[]"}',
            "Unable to parse 'sampling_parameters': attempt to access JSON non-object as object",
        ),
        (
            '{"text_input": "x", "n": 2}',
            "generate expects model to produce exactly 1 response, "
            "use generate stream for model that generates various number of responses",
        ),
        ('{"text_input": "x", "use_beam_search": true}', "parameter 'use_beam_search' is not supported"),
    ],
)
def test_refusals(body: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        decode(body)
    assert error.value.message == message


def test_a_stream_cannot_have_the_prompt() -> None:
    with pytest.raises(InvalidRequest, match="`exclude_input_in_output` = False is not allowed"):
        decode('{"text_input": "x", "exclude_input_in_output": false}', "generate_stream")


def test_the_size_of_all_inputs_together_is_limited() -> None:
    server = ADAPTER.server(with_options(ADAPTER.dialects["triton"], {"max_input_bytes": 20}))
    server.decode(ROUTES["generate"], b'{"text_input": "0123456789abcdef"}', call())
    with pytest.raises(InvalidRequest) as error:
        server.decode(ROUTES["generate"], b'{"text_input": "0123456789abcdef", "stream": false}', call())
    assert error.value.message == (
        "request size of 20 bytes with input 'stream' of size 1 bytes exceeds the maximum allowed input size of 20"
    )


@pytest.mark.parametrize("dialect", SERVERS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b'{"text_input": "\xed\xa0\x80"}',
        b'{"text_input": "\\ud800"}',
        b'{"text_input": "x", "temperature": NaN}',
        b'{"text_input": "x", "temperature": Infinity}',
        b'{"text_input": "x", "temperature": 1e400}',
        b'{"text_input": "x", "new": 18446744073709551616}',
        b'{"text_input": "x", "seed": ' + b"1" * 5000 + b"}",
        b'{"text_input": ' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"text_input": ' + b"[" * 100_000,
    ],
)
def test_malformed_bodies(body: bytes, dialect: str) -> None:
    with pytest.raises(MalformedBody) as error:
        decode(body, dialect=dialect)
    expected = {"triton": "failed to parse the request JSON buffer: The request body is n", "mindie-triton": "Failed"}
    assert error.value.message.startswith(expected[dialect])


@given(
    st.dictionaries(
        st.sampled_from(["text_input", "stream", "id", "parameters", "image", "temperature", "x", "n", "stop"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=6,
        ),
    )
)
@pytest.mark.parametrize("dialect", SERVERS)
def test_any_object_is_decoded_or_refused(dialect: str, body: dict) -> None:
    data = json.dumps(body, ensure_ascii=False).encode(errors="replace")
    with suppress(InvalidRequest, MalformedBody):
        assert decode(data, "generate_stream", dialect=dialect).prompts


@pytest.mark.parametrize(
    ("model", "version", "error", "message"),
    [
        ("nope", None, ModelNotFound, "Request for unknown model: 'nope' is not found"),
        ("mymodel", "2", ModelNotFound, "Request for unknown model: 'mymodel' version 2 is not found"),
        ("mymodel", "0", ModelNotFound, "Request for unknown model: 'mymodel' version 0 is not found"),
        ("mymodel", "one", RouteNotFound, "Not Found"),
        ("mymodel", "-1", RouteNotFound, "Not Found"),
        ("mymodel", "१", RouteNotFound, "Not Found"),
    ],
)
def test_models_and_versions(model: str, version: str | None, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        SERVERS["triton"].decode(ROUTES["generate_version"], b'{"text_input": "x"}', call(model, version))


@pytest.mark.parametrize("version", ["1", "01"])
def test_the_only_version(version: str) -> None:
    request = SERVERS["triton"].decode(ROUTES["generate_version"], b'{"text_input": "x"}', call(version=version))
    assert request.origin is not None
    assert request.origin.operation == "generate_version"


# --- MindIE -----------------------------------------------------------------------------------------------------


def test_mindie() -> None:
    body = json.dumps(
        {
            "id": "a_valid-id",
            "text_input": "My name is Olivier and I",
            "unknown": [1],
            "parameters": {
                "details": True,
                "do_sample": True,
                "max_new_tokens": 30,
                "repetition_penalty": 1.1,
                "seed": 123,
                "temperature": 1,
                "top_k": 10,
                "top_p": 0.99,
                "batch_size": 100,
                "typical_p": 0.5,
                "watermark": False,
                "priority": 5,
                "timeout": 10,
                "truncate": None,
                "adapter_id": "None",
            },
        }
    )
    request = decode(body, dialect="mindie-triton")
    assert request.client_request_id == "a_valid-id"
    assert request.sampling == Sampling(
        do_sample=True, temperature=1.0, top_k=10, top_p=0.99, repetition_penalty=1.1, seed=123
    )
    assert request.stopping == Stopping(max_new_tokens=30)
    assert request.lora_adapter is None
    ineffective = {"batch_size": 100, "priority": 5, "timeout": 10, "typical_p": 0.5, "watermark": False}
    assert {name: request.hints[name] for name in ineffective} == ineffective
    assert request.outputs[-1].tensor == "details"


def test_mindie_defaults() -> None:
    request = decode('{"text_input": "x", "id": null, "parameters": null}', dialect="mindie-triton")
    assert request.sampling == Sampling()
    assert request.stopping == Stopping(max_new_tokens=20)
    assert request.client_request_id is None


def test_mindie_reads_parts() -> None:
    parts = [
        {"type": "text", "text": "What is "},
        {"type": "image_url", "image_url": "http://host/a.png"},
        {"type": "text", "text": "this?"},
        {"type": "image_url", "image_url": "/data/test.png"},
        {"type": "image_url", "image_url": "/9j/4AAQ"},
    ]
    request = decode(json.dumps({"text_input": parts}), dialect="mindie-triton")
    images = (ImagePart("http://host/a.png", "url"), ImagePart("/data/test.png", "path"), ImagePart("/9j/4AAQ", "data"))
    assert request.prompts == (TextPrompt("What is this?", images),)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[]", "Failed to parse request context to json"),
        ('{"parameters": {}}', "The text_input not found"),
        ('{"text_input": null}', "The text_input not found"),
        ('{"text_input": 3}', "The type of text_input is abnormal."),
        ('{"text_input": []}', "Parameter text_input arr is empty"),
        ('{"text_input": ["x"]}', "text_input array must hold text and image_url parts."),
        (
            '{"text_input": ""}',
            "text_input must be necessary and data type must be string and length in (0, 4194304], "
            "but the length of inputs is 0",
        ),
        ('{"text_input": "x", "id": 1}', "id must be string type."),
        (
            '{"text_input": "x", "id": "a b"}',
            "The id can contain only digits, letters, underscores(_), hyphens(-) and no more than 256 words in length.",
        ),
        (
            '{"text_input": "x", "id": "a\\n"}',
            "The id can contain only digits, letters, underscores(_), hyphens(-) and no more than 256 words in length.",
        ),
        ('{"text_input": "x", "parameters": []}', "parameters must be object type."),
    ],
)
def test_mindie_refusals(body: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        decode(body, dialect="mindie-triton")
    assert error.value.message == message
