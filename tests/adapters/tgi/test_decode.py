"""Requests in the IR: every parameter, every default, and unknown fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.tgi.dialects import DIALECTS
from schemas.catalog import Catalog
from schemas.errors import InvalidRequest, MalformedBody, ModelNotFound
from schemas.ir import (
    ChatPrompt,
    Generate,
    Grammar,
    Message,
    Origin,
    Sampling,
    Stopping,
    TextPart,
    TextPrompt,
    Tokenize,
)
from tests.adapters.tgi.scenes import NAMES, ROUTES, ask, call, server

SCHEMA = {"properties": {"a": {"type": "string"}}}
CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}


def test_every_parameter_of_tgi() -> None:
    parameters = {
        "adapter_id": "support",
        "decoder_input_details": True,
        "details": False,
        "do_sample": True,
        "frequency_penalty": 0.5,
        "grammar": {"type": "json", "value": SCHEMA},
        "max_new_tokens": 30,
        "repetition_penalty": 1.03,
        "return_full_text": True,
        "seed": 5,
        "stop": ["a", "b"],
        "temperature": 0.5,
        "top_k": 10,
        "top_n_tokens": 3,
        "top_p": 0.95,
        "truncate": 100,
        "typical_p": 0.9,
        "watermark": True,
    }
    body = json.dumps({"inputs": "Who?", "parameters": parameters}).encode()
    assert server("tgi").decode(ROUTES["generate"], body, call()) == Generate(
        id="request-1",
        model="chat",
        prompts=(TextPrompt("Who?"),),
        sampling=Sampling(
            do_sample=True,
            temperature=0.5,
            top_k=10,
            top_p=0.95,
            typical_p=0.9,
            repetition_penalty=1.03,
            frequency_penalty=0.5,
            seed=5,
            watermark=True,
        ),
        stopping=Stopping(max_new_tokens=30, stop=("a", "b"), include_stop=True),
        stream_usage=True,
        truncate_prompt_tokens=100,
        echo=True,
        logprobs=True,
        top_logprobs=3,
        grammar=Grammar("json_schema", CLOSED),
        lora_adapter="support",
        origin=Origin("tgi", "tgi", "generate", body),
    )


PAGE = {
    "decoder_input_details": False,
    "details": True,
    "do_sample": True,
    "max_new_tokens": 20,
    "repetition_penalty": 1.03,
    "return_full_text": False,
    "seed": None,
    "temperature": 0.5,
    "top_k": 10,
    "top_p": 0.95,
    "truncate": None,
    "typical_p": 0.5,
    "watermark": False,
    "stop": None,
    "adapter_id": "None",
}


def test_the_example_of_mindies_page() -> None:
    request = ask("mindie", PAGE, operation="generate_stream", inputs="My name is Olivier and I")
    seed = request.sampling.seed
    assert request.sampling == Sampling(
        do_sample=True, temperature=0.5, top_k=10, top_p=0.95, repetition_penalty=1.03, seed=seed, seed_drawn=True
    )
    assert request.stopping == Stopping(max_new_tokens=20)
    assert (request.stream, request.stream_usage, request.lora_adapter, request.echo) == (True, True, None, False)
    assert (request.logprobs, request.extra) == (False, {})


def test_the_multimodal_example_of_mindies_page() -> None:
    inputs = [
        {"type": "text", "text": "My name is Olivier and I"},
        {"type": "image_url", "image_url": "/xxxx/test.png"},
    ]
    [prompt] = ask("mindie", PAGE, operation="generate_stream", inputs=inputs).prompts
    assert isinstance(prompt, ChatPrompt)


@pytest.mark.parametrize(
    ("name", "parameters", "do_sample", "temperature", "greedy"),
    [
        ("tgi", None, True, None, False),
        ("tgi", {}, False, None, True),
        ("tgi", {"do_sample": None}, False, None, True),
        ("tgi", {"temperature": 1.0}, False, None, True),
        ("tgi", {"temperature": 1.0, "do_sample": True}, True, 1.0, False),
        ("tgi", {"temperature": 0.5}, True, 0.5, False),
        ("tgi", {"temperature": 0.5, "do_sample": False}, True, 0.5, False),
        ("tgi", {"top_k": 5, "do_sample": False}, True, None, False),
        ("tgi", {"top_p": 0.5}, True, None, False),
        ("tgi", {"typical_p": 0.5}, True, None, False),
        ("tgi", {"seed": 1}, False, None, True),
        ("tgi", {"repetition_penalty": 1.5}, False, None, True),
        ("tgi-0.9", None, False, None, True),
        ("tgi-0.9", {"do_sample": True}, True, None, False),
        ("mindie", None, None, None, True),
        ("mindie", {}, None, None, True),
        ("mindie", {"temperature": 1.0}, None, 1.0, False),
        ("mindie", {"temperature": 0.5, "do_sample": False}, False, 0.5, True),
        ("mindie", {"top_k": 5}, None, None, False),
        ("mindie", {"typical_p": 0.5, "watermark": True}, None, None, True),
        ("mindie", {"do_sample": True}, True, None, False),
    ],
)
def test_which_parameters_enable_sampling(
    name: str, parameters: dict[str, Any] | None, do_sample: bool | None, temperature: float | None, greedy: bool
) -> None:
    sampling = ask(name, parameters).sampling
    assert (sampling.do_sample, sampling.temperature, sampling.greedy) == (do_sample, temperature, greedy)


def test_mindie_takes_typical_p_and_watermark_without_effect() -> None:
    sampling = ask("mindie", {"typical_p": 0.5, "watermark": True}).sampling
    assert (sampling.typical_p, sampling.watermark) == (None, False)


@pytest.mark.parametrize(("name", "limit"), [("tgi", None), ("tgi-0.9", 20), ("mindie", 20)])
def test_default_max_new_tokens(name: str, limit: int | None) -> None:
    assert ask(name).stopping.max_new_tokens == limit
    assert ask(name, {"max_new_tokens": None}).stopping.max_new_tokens == limit
    assert ask(name, {"max_new_tokens": 7}).stopping.max_new_tokens == 7


def test_max_iter_times_caps_max_new_tokens() -> None:
    def limit(name: str, asked: int | None) -> int | None:
        return ask(name, {"max_new_tokens": asked}, knobs={"max_iter_times": 50}).stopping.max_new_tokens

    assert [limit("mindie", asked) for asked in (None, 7, 50, 51)] == [20, 7, 50, 50]
    assert limit("tgi", None) == 50


@pytest.mark.parametrize("name", NAMES)
def test_full_text_on_the_compat_route(name: str) -> None:
    default = False
    assert ask(name, operation="compat").echo is default
    assert ask(name, operation="compat", knobs={"compat_full_text": not default}).echo is not default
    assert ask(name, operation="compat", parameters={"return_full_text": None}).echo is default
    assert ask(name, {"return_full_text": False}, operation="compat").echo is False
    assert ask(name, operation="generate").echo is False
    assert ask(name, {"return_full_text": True}).echo is True


@pytest.mark.parametrize("name", NAMES)
def test_which_requests_stream(name: str) -> None:
    assert ask(name, operation="generate_stream").stream
    assert ask(name, operation="compat", stream=True).stream
    for quiet in (ask(name), ask(name, operation="compat"), ask(name, operation="compat", stream=None)):
        assert not quiet.stream
    assert not ask(name, operation="compat", stream=False).stream


def test_stream_of_a_wrong_type_is_refused() -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask("tgi", operation="compat", stream="yes")
    assert raised.value.param == "stream"


@pytest.mark.parametrize(
    ("stop", "stops"), [(None, ()), ([], ()), ("a", ("a",)), (["a", "b"], ("a", "b")), ("end.", ("end.",))]
)
def test_stop_of_mindie_is_a_string_or_a_list(stop: Any, stops: tuple[str, ...]) -> None:
    assert ask("mindie", {"stop": stop}).stopping == Stopping(max_new_tokens=20, stop=stops, include_stop=False)


def test_stop_sequences_of_tgi_stay_in_the_text() -> None:
    assert ask("tgi", {"stop": ["a"]}).stopping == Stopping(stop=("a",), include_stop=True)


@pytest.mark.parametrize(
    ("parameters", "logprobs", "top", "details"),
    [
        ({}, False, 0, False),
        ({"details": True}, True, 0, True),
        ({"decoder_input_details": True}, True, 0, True),
        ({"top_n_tokens": 0}, False, 0, False),
        ({"top_n_tokens": 2}, True, 2, False),
    ],
)
def test_details_request_logprobs_and_usage(
    parameters: dict[str, Any], logprobs: bool, top: int, details: bool
) -> None:
    request = ask("tgi", parameters)
    assert (request.logprobs, request.top_logprobs, request.stream_usage) == (logprobs, top, details)


def test_details_without_logprobs_by_configuration() -> None:
    request = ask("tgi", {"details": True}, knobs={"details_logprobs": False})
    assert (request.logprobs, request.stream_usage) == (False, True)


def test_best_of_requests_all_answers_and_their_logprobs() -> None:
    request = ask("tgi", {"best_of": 2, "do_sample": True})
    assert (request.n, request.best_of, request.logprobs) == (2, 2, True)
    request = ask("tgi", {"best_of": 1})
    assert (request.n, request.best_of, request.logprobs) == (1, None, False)


class TestSeeds:
    def test_tgi_leaves_the_seed_to_the_backend(self) -> None:
        assert ask("tgi", {"do_sample": True}).sampling.seed is None

    def test_mindie_draws_a_seed(self) -> None:
        def seed(id: str) -> int | None:
            request = server("mindie").decode(ROUTES["generate"], b'{"inputs":"a"}', call(id=id))
            assert isinstance(request, Generate)
            return request.sampling.seed

        seeds = [seed(f"request-{number}") for number in range(100)]
        assert len(set(seeds)) == 100
        assert all(seed is not None and 0 < seed < 2**63 for seed in seeds)
        assert seed("request-1") == seeds[1]

    def test_mindie_keeps_the_clients_seed(self) -> None:
        assert ask("mindie", {"seed": 2**64 - 1}).sampling.seed == 2**64 - 1


@pytest.mark.parametrize(
    ("spec", "grammar"),
    [
        (None, None),
        ({"type": "json", "value": SCHEMA}, Grammar("json_schema", CLOSED)),
        ({"type": "json", "value": json.dumps(SCHEMA)}, Grammar("json_schema", CLOSED)),
        ({"type": "json_object", "value": SCHEMA}, Grammar("json_schema", CLOSED)),
        ({"type": "regex", "value": "a+"}, Grammar("regex", "a+")),
        ({"type": "json_schema", "value": {"schema": SCHEMA}}, Grammar("json_schema", CLOSED)),
        (
            {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA, "strict": True}},
            Grammar("json_schema", CLOSED, "x", True),
        ),
    ],
)
def test_grammar(spec: Any, grammar: Grammar | None) -> None:
    assert ask("tgi", {"grammar": spec}).grammar == grammar


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"type": "json", "value": {}}, "Grammar must have a 'properties' field"),
        ({"type": "json", "value": '{"type":"object"}'}, "Grammar must have a 'properties' field"),
        ({"type": "json", "value": "{"}, "the schema is not JSON"),
        ({"type": "json", "value": "[" * 5000}, "the schema is not JSON"),
        ({"type": "json", "value": 5}, "a schema must be an object"),
        ({"type": "json"}, "a schema must be an object"),
        ({"type": "json_object"}, "a schema must be an object"),
        ({"type": "regex", "value": {}}, "a regex must be a string"),
        ({"type": "regex"}, "a regex must be a string"),
        ({"type": "json_schema", "value": "x"}, "missing field `schema`"),
        ({"type": "json_schema", "value": {"name": "x"}}, "a schema must be an object"),
        (
            {"type": "json_schema", "value": {"name": 5, "schema": SCHEMA}},
            "`name` must be a string and `strict` a boolean",
        ),
    ],
)
def test_grammar_refused(spec: Any, why: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask("tgi", {"grammar": spec})
    assert (raised.value.message, raised.value.param) == (f"grammar is not valid: {why}", "parameters.grammar")


def test_grammar_of_an_unknown_type() -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask("tgi", {"grammar": {"type": "lark", "value": "x"}})
    assert raised.value.param == "parameters.grammar.type"


class TestUnknownFields:
    def test_unknown_fields_are_kept(self) -> None:
        request = ask("tgi", {"max_retries": 0, "details": True}, model="x", options={"wait": True})
        assert request.extra == {"model": "x", "options": {"wait": True}, "parameters": {"max_retries": 0}}
        assert request.stream_usage

    def test_stream_is_unknown_where_the_path_decides(self) -> None:
        request = ask("tgi", operation="generate", stream=True)
        assert (request.stream, request.extra) == (False, {"stream": True})

    @pytest.mark.parametrize("name", ["tgi-0.9", "mindie"])
    def test_parameters_of_later_versions_are_unknown(self, name: str) -> None:
        later = {"frequency_penalty": 9.0, "top_n_tokens": 99, "grammar": "?"}
        request = ask(name, later)
        assert request.extra == {"parameters": later}
        assert request.sampling.frequency_penalty is None

    def test_unknown_parameters_count_as_parameters(self) -> None:
        """A request with only unknown parameters is not one without `parameters`."""
        assert ask("tgi", {"x": 1}).sampling.do_sample is False


def test_all_null_as_tgis_own_client_sends_it() -> None:
    nulls = dict.fromkeys(DIALECTS["tgi"].requests.parameters) | {"stop": [], "details": True, "do_sample": False}
    request = ask("tgi", nulls, operation="compat", stream=False)
    assert request.sampling == Sampling(do_sample=False)
    assert request.stopping == Stopping(include_stop=True)


@pytest.mark.parametrize("parameters", [5, [], "x"])
def test_parameters_of_a_wrong_type(parameters: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ask("tgi", parameters)
    assert raised.value.param == "parameters"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operation", ["compat", "generate", "generate_stream", "tokenize"])
def test_a_body_that_is_no_request_is_refused(name: str, operation: str) -> None:
    for body in (b"", b"{", b"[]", b'"x"', b"\xff", b'{"inputs":' + b"[" * 70 + b"]" * 70 + b"}"):
        with pytest.raises(MalformedBody):
            server(name).decode(ROUTES[operation], body, call())
    with pytest.raises(InvalidRequest) as raised:
        server(name).decode(ROUTES[operation], b"{}", call())
    assert raised.value.param == "inputs"


@pytest.mark.parametrize("operation", ["generate", "tokenize"])
def test_a_request_is_refused_where_nothing_is_served(operation: str) -> None:
    with pytest.raises(ModelNotFound):
        server("tgi").decode(ROUTES[operation], b'{"inputs":"a"}', call(Catalog({})))
    with pytest.raises(ModelNotFound):
        server("tgi").describe(ROUTES["info"], call(Catalog({})), b"")


def test_tokenize() -> None:
    body = b'{"inputs":"a","parameters":{"truncate":0}}'
    assert server("tgi").decode(ROUTES["tokenize"], body, call()) == Tokenize(
        id="request-1", model="chat", prompt=TextPrompt("a"), origin=Origin("tgi", "tgi", "tokenize", body)
    )
    listed = server("mindie").decode(ROUTES["tokenize"], b'{"inputs":[{"type":"text","text":"a"}]}', call())
    assert isinstance(listed, Tokenize)
    assert listed.prompt == ChatPrompt((Message("user", (TextPart("a"),)),))
