"""Every parameter of both dialects: its value in the IR, and its bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.triton.dialects import DIALECTS
from schemas.errors import InvalidRequest
from schemas.ir import Generate, Grammar, Sampling, Stopping
from tests.adapters.triton.cases import decode


def asked(name: str, value: Any, dialect: str = "triton", operation: str = "generate_stream") -> Generate:
    """The request with a parameter; arrays and objects of vLLM must be in `sampling_parameters`."""
    if isinstance(value, list | dict) and dialect == "triton":
        return decode(json.dumps({"text_input": "x", "sampling_parameters": json.dumps({name: value})}), operation)
    return decode(json.dumps({"text_input": "x", "parameters": {name: value}}), operation, dialect=dialect)


SAMPLED = {"do_sample": True, "temperature": 1.0}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", 0, Sampling(do_sample=False, temperature=0.0)),
        ("temperature", 0.5, Sampling(do_sample=True, temperature=0.5)),
        ("temperature", "0.5", Sampling(do_sample=True, temperature=0.5)),
        ("top_p", 1, Sampling(**SAMPLED, top_p=1.0)),
        ("top_k", 5, Sampling(**SAMPLED, top_k=5)),
        ("top_k", 5.0, Sampling(**SAMPLED, top_k=5)),
        ("top_k", 0, Sampling(**SAMPLED)),
        ("top_k", -1, Sampling(**SAMPLED)),
        ("min_p", 0.1, Sampling(**SAMPLED, min_p=0.1)),
        ("min_p", 0, Sampling(**SAMPLED)),
        ("repetition_penalty", 1.2, Sampling(**SAMPLED, repetition_penalty=1.2)),
        ("presence_penalty", -2, Sampling(**SAMPLED, presence_penalty=-2.0)),
        ("frequency_penalty", 2, Sampling(**SAMPLED, frequency_penalty=2.0)),
        ("seed", 0, Sampling(**SAMPLED, seed=0)),
        ("seed", 18446744073709551615, Sampling(**SAMPLED, seed=18446744073709551615)),
        ("seed", -1, Sampling(**SAMPLED)),
        ("logit_bias", {"5": 1.5, "6": -100}, Sampling(**SAMPLED, logit_bias=((5, 1.5), (6, -100.0)))),
    ],
)
def test_sampling(name: str, value: Any, expected: Sampling) -> None:
    assert asked(name, value).sampling == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_tokens", 7, Stopping(max_new_tokens=7)),
        ("max_tokens", "7", Stopping(max_new_tokens=7)),
        ("max_new_tokens", 7, Stopping(max_new_tokens=7)),
        ("min_tokens", 2, Stopping(max_new_tokens=16, min_new_tokens=2)),
        ("stop", "END", Stopping(max_new_tokens=16, stop=("END",))),
        ("stop", ["a", "b"], Stopping(max_new_tokens=16, stop=("a", "b"))),
        ("stop_words", "END", Stopping(max_new_tokens=16, stop=("END",))),
        ("stop_token_ids", 5, Stopping(max_new_tokens=16, stop_token_ids=(5,))),
        ("stop_token_ids", [5, 6], Stopping(max_new_tokens=16, stop_token_ids=(5, 6))),
        ("ignore_eos", True, Stopping(max_new_tokens=16, ignore_eos=True)),
        ("ignore_eos", "true", Stopping(max_new_tokens=16, ignore_eos=True)),
        ("include_stop_str_in_output", True, Stopping(max_new_tokens=16, include_stop=True)),
        ("bad_words", [], Stopping(max_new_tokens=16)),
        ("use_beam_search", False, Stopping(max_new_tokens=16)),
    ],
)
def test_stopping(name: str, value: Any, expected: Stopping) -> None:
    request = asked(name, value)
    assert request.stopping == expected
    assert request.extra == {}


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("n", 3, "n", 3),
        ("best_of", 3, "best_of", 3),
        ("truncate_prompt_tokens", 8, "truncate_prompt_tokens", 8),
        ("logprobs", 0, "logprobs", True),
        ("logprobs", 4, "top_logprobs", 4),
        ("prompt_logprobs", 1, "prompt_logprobs", True),
        ("lora_name", "alpaca", "lora_adapter", "alpaca"),
    ],
)
def test_other_fields(name: str, value: Any, field: str, expected: Any) -> None:
    assert getattr(asked(name, value), field) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"json": {"type": "object"}}, Grammar("json_schema", {"type": "object"})),
        ({"json": '{"type": "object"}'}, Grammar("json_schema", {"type": "object"})),
        ({"regex": "[0-9]+", "choice": None}, Grammar("regex", "[0-9]+")),
        ({"choice": ["a+", "b"]}, Grammar("regex", r"a\+|b")),
        ({"json_object": True}, Grammar("json_object")),
    ],
)
@pytest.mark.parametrize("name", ["structured_outputs", "guided_decoding"])
def test_grammars(name: str, value: dict, expected: Grammar) -> None:
    assert asked(name, value).grammar == expected
    assert asked(name, json.dumps(value)).grammar == expected


@pytest.mark.parametrize(
    "value", ["{", "3", '{"grammar": 3}', '{"json": "{"}', '{"json": {}, "regex": "x"}', '{"choice": []}']
)
def test_unknown_grammars_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match="structured_outputs"):
        asked("structured_outputs", value)


WRONG_TYPES = [
    ("temperature", "hot", "parameter 'temperature' must be of type float"),
    ("temperature", "nan", "parameter 'temperature' must be of type float"),
    ("temperature", "inf", "parameter 'temperature' must be of type float"),
    ("temperature", True, "parameter 'temperature' must be of type float"),
    ("max_tokens", 1.5, "parameter 'max_tokens' must be of type integer"),
    ("max_tokens", True, "parameter 'max_tokens' must be of type integer"),
    ("ignore_eos", 1, "parameter 'ignore_eos' must be of type boolean"),
    ("stop", 3, "parameter 'stop' must be of type string or array of strings, none empty"),
    ("stop", [3], "parameter 'stop' must be of type string or array of strings, none empty"),
    ("stop", ["a", ""], "parameter 'stop' must be of type string or array of strings, none empty"),
    ("stop_token_ids", ["x"], "parameter 'stop_token_ids' must be of type integer or array of integers"),
    ("logit_bias", {"-5": 1}, "parameter 'logit_bias' must be of type object of token ids and numbers"),
    ("logit_bias", {"5": "1"}, "parameter 'logit_bias' must be of type object of token ids and numbers"),
    ("logit_bias", {"x": 1}, "parameter 'logit_bias' must be of type object of token ids and numbers"),
    ("lora_name", 3, "parameter 'lora_name' must be of type string"),
]
OUT_OF_RANGE = [
    ("temperature", -0.1, "parameter 'temperature' must be in [0,inf), got -0.1"),
    ("max_tokens", 0, "parameter 'max_tokens' must be in [1,2147483647], got 0"),
    ("max_tokens", 1e300, "parameter 'max_tokens' must be in [1,2147483647], got 1e+300"),
    ("min_tokens", -1, "parameter 'min_tokens' must be in [0,2147483647], got -1"),
    ("top_p", 0, "parameter 'top_p' must be in (0,1], got 0"),
    ("top_p", 1.1, "parameter 'top_p' must be in (0,1], got 1.1"),
    ("top_k", -2, "parameter 'top_k' must be in [-1,2147483647], got -2"),
    ("min_p", 1.5, "parameter 'min_p' must be in [0,1], got 1.5"),
    ("repetition_penalty", 0, "parameter 'repetition_penalty' must be in (0,inf), got 0"),
    ("presence_penalty", 2.1, "parameter 'presence_penalty' must be in [-2,2], got 2.1"),
    ("frequency_penalty", -2.1, "parameter 'frequency_penalty' must be in [-2,2], got -2.1"),
    ("seed", -2, "parameter 'seed' must be in [-1,18446744073709551615], got -2"),
    ("n", 0, "parameter 'n' must be in [1,128], got 0"),
    ("best_of", 129, "parameter 'best_of' must be in [1,128], got 129"),
    ("logprobs", 21, "parameter 'logprobs' must be in [0,20], got 21"),
    ("stop_token_ids", [1, -1], "parameter 'stop_token_ids' must be in [0,2147483647], got -1"),
]
MINDIE = [
    ("temperature", 0, "Parameter temperature must be in (0,inf), got 0."),
    ("top_p", 1.0, "Parameter top_p must be in (0,1), got 1.0."),
    ("top_k", -1, "Parameter top_k must be in [0,2147483647], got -1."),
    ("typical_p", 0, "Parameter typical_p must be in (0,1], got 0."),
    ("repetition_penalty", 0, "Parameter repetition_penalty must be in (0,inf), got 0."),
    ("max_new_tokens", 0, "Parameter max_new_tokens must be in (0,2147483647], got 0."),
    ("priority", 6, "Parameter priority must be in [1,5], got 6."),
    ("timeout", 0, "Parameter timeout must be in (0,65535], got 0."),
    ("batch_size", 0, "Parameter batch_size must be in (0,2147483647], got 0."),
    ("seed", -1, "Parameter seed must be in [0,18446744073709551615], got -1."),
    ("max_new_tokens", "5", "max_new_tokens must be integer type."),
    ("details", "true", "details must be boolean type."),
]


@pytest.mark.parametrize(
    ("dialect", "name", "value", "message"),
    [("triton", *case) for case in WRONG_TYPES + OUT_OF_RANGE] + [("mindie-triton", *case) for case in MINDIE],
)
def test_invalid_values_are_refused(dialect: str, name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        asked(name, value, dialect)
    assert error.value.message == message
    assert error.value.param == name


@pytest.mark.parametrize(
    ("dialect", "name", "value"),
    [
        (dialect, name, bound)
        for dialect, row in DIALECTS.items()
        for name, rule in row.requests.parameters.items()
        for bound, is_open in ((rule.low, rule.open_low), (rule.high, rule.open_high))
        if bound is not None and not is_open and rule.type in ("int", "float")
    ],
)
def test_closed_bounds_belong_to_the_interval(dialect: str, name: str, value: float) -> None:
    asked(name, value, dialect)


def test_best_of_must_not_be_less_than_n() -> None:
    body = {"text_input": "x", "parameters": {"n": 3, "best_of": 2}}
    with pytest.raises(InvalidRequest, match="'best_of' must not be less than 'n'"):
        decode(json.dumps(body), "generate_stream")


def test_mindie_honours_what_its_own_endpoint_drops() -> None:
    body = {"text_input": "x", "parameters": {"stop": ["a"], "truncate": 5, "adapter_id": "lora/1"}}
    request = decode(json.dumps(body), dialect="mindie-triton")
    assert request.stopping.stop == ("a",)
    assert request.truncate_prompt_tokens == 5
    assert request.lora_adapter == "lora/1"
