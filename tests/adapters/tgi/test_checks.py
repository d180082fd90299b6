"""Every parameter: accepted values at the bounds, refused values and their messages."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.tgi.dialects import DIALECTS
from schemas.catalog import Catalog, ModelCard
from schemas.errors import InvalidRequest
from tests.adapters.tgi.scenes import NAMES, ask

U31 = 2147483647
U32 = 4294967295
U64 = 18446744073709551615
TINY = 5e-324

GRAMMAR = {"type": "json", "value": {"properties": {}}}

ACCEPTED: dict[str, dict[str, list[Any]]] = {
    "tgi": {
        "temperature": [TINY, 1, 100.0],
        "repetition_penalty": [TINY, 1.0, 1000.0],
        "frequency_penalty": [-2, -2.0, 0, 2.0],
        "top_p": [TINY, 0.999999],
        "typical_p": [TINY, 0.999999],
        "top_k": [1, U31],
        "max_new_tokens": [1, U32],
        "seed": [0, 1, U64],
        "truncate": [1, 2047],
        "stop": [[], ["a"], ["a", "b", "c", "d"], ["x" * 5000]],
        "top_n_tokens": [0, 5],
        "best_of": [1],
        "do_sample": [True, False],
        "details": [True, False],
        "decoder_input_details": [True, False],
        "return_full_text": [True, False],
        "watermark": [True, False],
        "adapter_id": ["predibase/support", "None"],
        "grammar": [GRAMMAR],
    },
    "mindie": {
        "temperature": [TINY, 1, 100.0],
        "repetition_penalty": [TINY, 1.0, 1000.0],
        "top_p": [TINY, 0.999999],
        "typical_p": [TINY, 0.5, 1.0, 1],
        "top_k": [1, U31],
        "max_new_tokens": [1, U31],
        "seed": [1, U64],
        "truncate": [1, 2048, U31],
        "stop": [[], "a", "x" * 1024, ["a"] * 1024, ["x" * 1024] * 32, ["x" * 1024]],
        "do_sample": [True, False],
        "details": [True, False],
        "decoder_input_details": [True, False],
        "return_full_text": [True, False],
        "watermark": [True, False],
        "adapter_id": ["None", "a", "A-Z.0_9/x", "a" * 256],
    },
}
LATER = ("frequency_penalty", "top_n_tokens", "grammar", "adapter_id")
ACCEPTED["tgi-0.9"] = {name: values for name, values in ACCEPTED["tgi"].items() if name not in LATER}

POSITIVE = "must be strictly positive"
BETWEEN = "must be > 0.0 and < 1.0"
STOP_LIST = "`stop` must be list[string] if list, and item length in [1, 1024] with total <= 32768"

REFUSED: dict[str, list[tuple[str, Any, str]]] = {
    "tgi-0.9": [
        ("temperature", 0, f"`temperature` {POSITIVE}"),
        ("temperature", -0.5, f"`temperature` {POSITIVE}"),
        ("repetition_penalty", 0.0, f"`repetition_penalty` {POSITIVE}"),
        ("top_p", 0.0, f"`top_p` {BETWEEN}"),
        ("top_p", 1.0, f"`top_p` {BETWEEN}"),
        ("typical_p", 0, f"`typical_p` {BETWEEN}"),
        ("typical_p", 1, f"`typical_p` {BETWEEN}"),
        ("top_k", 0, f"`top_k` {POSITIVE}"),
        ("top_k", -1, f"`top_k` {POSITIVE}"),
        ("top_k", U31 + 1, f"`top_k` must be an integer from 1 to {U31}"),
        ("max_new_tokens", 0, f"`max_new_tokens` {POSITIVE}"),
        ("max_new_tokens", U32 + 1, f"`max_new_tokens` must be an integer from 1 to {U32}"),
        ("seed", -1, f"`seed` must be an integer from 0 to {U64}"),
        ("truncate", 0, f"`truncate` {POSITIVE} and less than 2047. Given: 0"),
        ("truncate", 2048, f"`truncate` {POSITIVE} and less than 2047. Given: 2048"),
        ("stop", "a", "`stop` must be a list of strings"),
        ("stop", list("abcde"), "`stop` supports up to 4 stop sequences. Given: 5"),
        ("stop", ["a", ""], "`stop` sequences cannot be empty"),
        ("best_of", 0, "`best_of` must be > 0 and <= 2. Given: 0"),
        ("best_of", 3, "`best_of` must be > 0 and <= 2. Given: 3"),
        ("best_of", 2, "you must use sampling when `best_of` is > 1"),
    ],
    "tgi": [
        ("frequency_penalty", -2.01, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ("frequency_penalty", 2.01, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ("top_n_tokens", 6, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
        ("top_n_tokens", -1, "`top_n_tokens` must be >= 0 and <= 5. Given: -1"),
    ],
    "mindie": [
        ("temperature", 0, "Parameter temperature must be greater than 0.0, got 0.0."),
        ("temperature", -1.5, "Parameter temperature must be greater than 0.0, got -1.5."),
        ("repetition_penalty", 0.0, "Parameter repetition_penalty must be greater than 0.0, got 0.0."),
        ("top_p", 0.0, "Parameter top_p must be in (0.0,1.0), got 0.0."),
        ("top_p", 1.0, "Parameter top_p must be in (0.0,1.0), got 1.0."),
        ("typical_p", 0.0, "Parameter typical_p must be in (0.0,1.0], got 0.0."),
        ("typical_p", 1.01, "Parameter typical_p must be in (0.0,1.0], got 1.01."),
        ("top_k", 0, f"Parameter top_k must be in (0,{U31}], got 0."),
        ("top_k", U31 + 1, f"Parameter top_k must be in (0,{U31}], got {U31 + 1}."),
        ("max_new_tokens", 0, f"Parameter max_new_tokens must be in (0,{U31}], got 0."),
        ("max_new_tokens", U31 + 1, f"Parameter max_new_tokens must be in (0,{U31}], got {U31 + 1}."),
        ("seed", 0, f"Parameter seed must be in (0,{U64}], got 0."),
        ("truncate", 0, f"truncate must be in (0,{U31}], got 0."),
        ("truncate", U31 + 1, f"truncate must be in (0,{U31}], got {U31 + 1}."),
        ("stop", "", "length of `stop` must be in [1, 1024], but got 0"),
        ("stop", "x" * 1025, "length of `stop` must be in [1, 1024], but got 1025"),
        ("stop", ["a", ""], STOP_LIST),
        ("stop", ["x" * 1025], STOP_LIST),
        ("stop", ["x" * 1024] * 32 + ["x"], STOP_LIST),
        ("stop", ["a"] * 1025, "`stop` supports up to 1024 stop sequences. Given: 1025"),
        ("adapter_id", "", "The format of adapter_id is invalid."),
        ("adapter_id", "a" * 257, "The format of adapter_id is invalid."),
        ("adapter_id", "a b", "The format of adapter_id is invalid."),
        ("adapter_id", "a\n", "The format of adapter_id is invalid."),
        ("adapter_id", "é", "The format of adapter_id is invalid."),
    ],
}
REFUSED["tgi"] += REFUSED["tgi-0.9"]

WRONG_TYPES = [
    ("temperature", "1"),
    ("temperature", True),
    ("top_k", 1.5),
    ("max_new_tokens", "20"),
    ("do_sample", 1),
    ("details", "true"),
    ("stop", 5),
    ("seed", 1.0),
    ("watermark", []),
]


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_of_a_dialect_has_a_case(name: str) -> None:
    assert set(ACCEPTED[name]) == set(DIALECTS[name].requests.parameters)


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        pytest.param(name, parameter, value, id=f"{name}-{parameter}-{str(value)[:20]}")
        for name in NAMES
        for parameter, values in ACCEPTED[name].items()
        for value in [*values, None]
    ],
)
def test_a_value_within_bounds_is_accepted(name: str, parameter: str, value: Any) -> None:
    assert ask(name, {parameter: value}).prompts


@pytest.mark.parametrize(
    ("name", "parameter", "value", "message"),
    [
        pytest.param(name, *row, id=f"{name}-{row[0]}-{str(row[1])[:20]}")
        for name, rows in REFUSED.items()
        for row in rows
    ],
)
def test_a_value_out_of_bounds_is_refused(name: str, parameter: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask(name, {parameter: value})
    assert raised.value.message == message
    assert raised.value.param == f"parameters.{parameter}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("parameter", "value"), WRONG_TYPES)
def test_a_value_of_a_wrong_type_is_refused(name: str, parameter: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask(name, {parameter: value})
    assert raised.value.param == f"parameters.{parameter}"


@pytest.mark.parametrize("name", ["tgi", "tgi-0.9"])
@pytest.mark.parametrize("sampling", [{"do_sample": True}, {"temperature": 1.0}, {"top_k": 1}, {"top_p": 0.5}])
def test_best_of_needs_sampling_and_no_seed(name: str, sampling: dict[str, Any]) -> None:
    assert ask(name, {"best_of": 2} | sampling).n == 2
    with pytest.raises(InvalidRequest, match="`seed` must not be set when `best_of` > 1"):
        ask(name, {"best_of": 2, "seed": 0} | sampling)


def test_best_of_without_sampling_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="you must use sampling"):
        ask("tgi", {"best_of": 2})


def test_best_of_is_refused_where_the_limit_is_1() -> None:
    with pytest.raises(InvalidRequest, match="`best_of` != 1 is not allowed for this endpoint"):
        ask("tgi", {"best_of": 2, "do_sample": True}, knobs={"max_best_of": 1})


STREAMED = {"operation": "generate_stream"}, {"operation": "compat", "stream": True}


@pytest.mark.parametrize("how", STREAMED)
@pytest.mark.parametrize(
    ("name", "parameter", "message"),
    [
        ("tgi", {"best_of": 2, "do_sample": True}, "`best_of` != 1 is not supported when streaming tokens"),
        (
            "tgi-0.9",
            {"decoder_input_details": True},
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
        (
            "mindie",
            {"decoder_input_details": True},
            "The decoder_input_details must not be true when stream is true.",
        ),
    ],
)
def test_parameters_that_streams_refuse(
    name: str, parameter: dict[str, Any], message: str, how: dict[str, Any]
) -> None:
    assert ask(name, parameter).prompts
    with pytest.raises(InvalidRequest) as raised:
        ask(name, parameter, **how)
    assert raised.value.message == message


def test_truncate_has_no_upper_limit_if_the_context_length_is_unknown() -> None:
    catalog = Catalog({"chat": ModelCard(name="chat")}, "chat")
    assert ask("tgi", {"truncate": 10**6}, catalog=catalog).truncate_prompt_tokens == 10**6
    with pytest.raises(InvalidRequest) as raised:
        ask("tgi", {"truncate": 0}, catalog=catalog)
    assert raised.value.message == "`truncate` must be strictly positive. Given: 0"


@pytest.mark.parametrize("knob", [{"max_stop_sequences": 1}, {"max_top_n_tokens": 1}])
def test_limits_are_configurable(knob: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        ask("tgi", {"stop": ["a", "b"], "top_n_tokens": 2}, knobs=knob)


def test_a_bound_of_the_configuration_needs_no_message() -> None:
    knobs = {"bounds": [{"name": "max_new_tokens", "low": 1, "high": 100}]}
    assert ask("tgi", {"max_new_tokens": 100}, knobs=knobs).stopping.max_new_tokens == 100
    with pytest.raises(InvalidRequest) as raised:
        ask("tgi", {"max_new_tokens": 101}, knobs=knobs)
    assert raised.value.message == "`max_new_tokens` must be in [1,100]"
