"""Plain requests of all protocols: read in one step, they are what `decode` reads, and nothing is accepted but that."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import anthropic, databricks, openai, tgi, triton
from adapters.anthropic.decode import read_messages
from adapters.base import Call, Route
from adapters.optional import PlainCodec
from adapters.tgi.decode import read_generate
from adapters.triton.generate import body as generate_body
from adapters.triton.generate.request import to_generate
from schemas.catalog import Catalog, ModelCard, TensorNames
from schemas.errors import GatewayError, MalformedBody
from schemas.ir import Generate

CARDS = {
    "m": ModelCard(name="m", context_length=100),
    "named": ModelCard(name="named", tensors=TensorNames({"PROMPT": "text_input"})),
}
CALL = Call("r1", Catalog(CARDS, default="m"), {}, {"anthropic-version": "2023-06-01"})
ADAPTERS = {each.ADAPTER.name: each.ADAPTER for each in (openai, databricks, anthropic, tgi, triton)}
PATHS = {
    "openai": ("/v1/chat/completions", {}),
    "databricks": ("/serving-endpoints/{name}/served-models/{served}/invocations", {"name": "m", "served": "one"}),
    "anthropic": ("/v1/messages", {}),
    "tgi": ("/generate_stream", {}),
    "triton": ("/v2/models/{model}/generate_stream", {"model": "m"}),
}
DIALECTS = [(name, dialect) for name, adapter in ADAPTERS.items() for dialect in adapter.dialects]

TEXTS = st.text(max_size=5) | st.sampled_from(('q"\\', "\\", "![](data:image/png;base64,x)", "\u2028"))
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.floats(-3, 3)
    | TEXTS
    | st.sampled_from((2**31, 2**63, 2**64, 2**70, 1e300, -0.0, "7", "0.5", "\ud800", [], [1], ["a"], {}, {"a": 1}))
)
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(("user", "assistant", "system", "tool", 1)), "content": TEXTS | VALUES},
    optional={"name": TEXTS, "cache_control": st.just({})},
)
FIELDS = {
    "openai": ("model", "messages", "stream", "max_tokens", "temperature", "top_p", "seed", "user", "n", "store"),
    "anthropic": (
        *("model", "messages", "max_tokens", "system", "stream", "temperature", "top_p", "top_k", "stop_sequences"),
        *("metadata", "tools", "service_tier", "thinking", "cache_control", "mcp_servers", "new"),
    ),
    "tgi": ("inputs", "stream", "new"),
    "triton": (
        *("text_input", "id", "stream", "max_tokens", "stop_words", "bad_words", "random_seed", "request_output_len"),
        *(
            "return_finish_reason",
            "exclude_input_in_output",
            "image",
            "input_ids",
            "sampling_parameters",
            "temperature",
        ),
        *("seed", "new", "return_log_probs"),
    ),
}
FIELDS["databricks"] = FIELDS["openai"]
PARAMETERS = {
    "tgi": (*tgi.ADAPTER.dialects["tgi"].requests.parameters, "new"),
    "triton": (*FIELDS["triton"], "stop", "n", "logprobs", "top_k", "top_p", "ignore_eos", "lora_name", "parameters"),
}
USUAL: dict[str, dict[str, Any]] = {
    "openai": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "anthropic": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    "tgi": {"inputs": "Hi", "parameters": {"max_new_tokens": 9}},
    "triton": {"text_input": "Hi", "parameters": {"max_new_tokens": 9}},
}
USUAL["databricks"] = {"messages": USUAL["openai"]["messages"]}


def server(name: str, dialect: str) -> tuple[Any, Route, Call]:
    """A codec, the route of a plain request, and the call."""
    codec = ADAPTERS[name].server(ADAPTERS[name].dialects[dialect])
    path, values = PATHS[name]
    route = next(each for each in codec.routes if each.path == path)
    return codec, route, Call(CALL.id, CALL.catalog, values, CALL.headers)


def by_full_way(name: str, codec: Any, route: Route, body: bytes, call: Call) -> Generate:
    """The request that a body is read as, without the one step."""
    dialect = codec.dialect if name == "triton" else codec._dialect
    if name == "anthropic":
        return read_messages(dialect, body, codec._origin(route, body, call), call)
    if name == "tgi":
        return read_generate(dialect, route.name, body, call)
    if name == "triton":
        card = CARDS[call.path["model"]]
        return to_generate(generate_body.read(body, card, dialect), route, call, card, dialect, body)
    full = type(codec)(dialect)
    full._plain_chats._template = None
    request = full.decode(route, body, call)
    assert isinstance(request, Generate)
    return request


def result(read: Callable[..., Generate | None], *given: Any) -> tuple[Generate | None, GatewayError | None]:
    """What is read, and what it is refused with."""
    try:
        return read(*given), None
    except GatewayError as error:
        return None, error


def written(members: list[tuple[str, Any]]) -> str:
    """An object, in which a name may occur twice."""
    return "{" + ",".join(f"{json.dumps(name)}:{_value(value)}" for name, value in members) + "}"


def _value(value: Any) -> str:
    return written(value) if isinstance(value, list) and value and isinstance(value[0], tuple) else json.dumps(value)


@st.composite
def bodies(draw: Any, name: str) -> bytes:
    """Bodies, most of them of a usual form with a few members more."""
    usual = [(key, [*value.items()] if isinstance(value, dict) else value) for key, value in USUAL[name].items()]
    members: list[tuple[str, Any]] = [each for each in usual if draw(st.integers(0, 9))]
    members += draw(st.lists(st.tuples(st.sampled_from(FIELDS[name]), VALUES), max_size=3))
    if name in PARAMETERS:
        given = draw(st.lists(st.tuples(st.sampled_from(PARAMETERS[name]), VALUES), max_size=3))
        members += [("parameters", given)] if given else []
    elif draw(st.booleans()):
        members.append(("messages", draw(st.lists(TURN, max_size=3))))
    return written(draw(st.permutations(members))).encode(errors="surrogatepass")


@pytest.mark.parametrize(("name", "dialect"), DIALECTS)
@given(data=st.data())
def test_they_are_read_as_by_decode(name: str, dialect: str, data: st.DataObject) -> None:
    codec, route, call = server(name, dialect)
    body = data.draw(bodies(name))
    plain, refusal = result(codec.read_plain, route, body, call)
    if refusal is not None:
        _, full = result(by_full_way, name, codec, route, body, call)
        assert type(full) is type(refusal)
        # Triton's words for a body that is not JSON are put around it later.
        assert isinstance(full, MalformedBody) or str(full) == str(refusal)
    if plain is not None:
        assert plain == codec.decode(route, body, call) == by_full_way(name, codec, route, body, call)
        assert not plain.foreign_fields


@pytest.mark.parametrize(("name", "dialect"), [each for each in DIALECTS if each[1] != "mindie-openai"])
def test_usual_requests_are_plain(name: str, dialect: str) -> None:
    codec, route, call = server(name, dialect)
    assert isinstance(codec, PlainCodec)
    assert isinstance(codec.read_plain(route, json.dumps(USUAL[name]).encode(), call), Generate)


@pytest.mark.parametrize("name", USUAL)
def test_large_ones_are_not(name: str) -> None:
    codec, route, call = server(name, next(iter(ADAPTERS[name].dialects)))
    body = json.dumps(USUAL[name]).replace("Hi", "Hi" * 40_000).encode()
    assert codec.read_plain(route, body, call) is None


def test_another_name_of_the_text_is_read_the_full_way() -> None:
    codec, route, call = server("triton", "triton")
    named = Call(call.id, call.catalog, {"model": "named"})
    (prompt,) = codec.read_plain(route, b'{"PROMPT":"Hi"}', named).prompts
    assert prompt.text == "Hi"
