"""Requests to remotes: literal bodies, and requests that the dialect cannot express."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from schemas.errors import UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Origin,
    Prompt,
    Sampling,
    Stopping,
    TextPart,
    TextPrompt,
    TokensPrompt,
    Tool,
    ToolChoice,
)
from tests.adapters.tgi.scenes import NAMES, client

PLAIN = Generate(id="a", model="m", prompts=(TextPrompt("Who?"),))


def having(**fields: Any) -> Generate:
    return msgspec.structs.replace(PLAIN, **fields)


def sent(name: str, request: Generate) -> Any:
    return json.loads(client(name).encode(request).body)


def parameters(name: str, **fields: Any) -> dict[str, Any]:
    parameters_sent: dict[str, Any] = sent(name, having(**fields))["parameters"]
    return parameters_sent


@pytest.mark.parametrize(
    ("name", "body"),
    [
        (
            "tgi",
            b'{"inputs":"Who?","parameters":{"do_sample":false,"details":true,"return_full_text":false}}',
        ),
        (
            "tgi-0.9",
            b'{"inputs":"Who?","parameters":{"do_sample":false,"max_new_tokens":512,"details":true,'
            b'"return_full_text":false}}',
        ),
        (
            "mindie",
            b'{"inputs":"Who?","parameters":{"max_new_tokens":2147483647,"details":true,"return_full_text":false}}',
        ),
    ],
)
def test_a_minimal_request(name: str, body: bytes) -> None:
    outbound = client(name).encode(PLAIN)
    assert (outbound.method, outbound.path, outbound.body) == ("POST", "/generate", body)
    assert outbound.headers == (("content-type", "application/json"),)
    assert client(name).encode(having(stream=True)).path == "/generate_stream"


def test_a_request_with_every_parameter() -> None:
    request = having(
        sampling=Sampling(
            temperature=0.5,
            top_k=5,
            top_p=0.9,
            typical_p=0.8,
            repetition_penalty=1.1,
            frequency_penalty=0.2,
            watermark=True,
        ),
        stopping=Stopping(max_new_tokens=9, stop=("a",)),
        n=2,
        truncate_prompt_tokens=3,
        prompt_logprobs=True,
        logprobs=True,
        top_logprobs=4,
        grammar=Grammar("regex", "a+"),
        lora_adapter="x",
    )
    assert sent("tgi", request)["parameters"] == {
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.9,
        "typical_p": 0.8,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "watermark": True,
        "max_new_tokens": 9,
        "stop": ["a"],
        "best_of": 2,
        "truncate": 3,
        "decoder_input_details": True,
        "top_n_tokens": 4,
        "details": True,
        "return_full_text": False,
        "grammar": {"type": "regex", "value": "a+"},
        "adapter_id": "x",
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0, top_k=5), Sampling(temperature=0.7, top_p=0.0)])
def test_greedy_by_values_that_tgi_refuses(name: str, sampling: Sampling) -> None:
    parameters_sent = parameters(name, sampling=sampling)
    assert parameters_sent["do_sample"] is False
    assert not {"temperature", "top_k", "top_p"} & parameters_sent.keys()


def test_greedy_in_spite_of_a_warper() -> None:
    """TGI samples if a warper is set; MindIE obeys `do_sample`."""
    sampling = Sampling(do_sample=False, temperature=0.5)
    assert parameters("tgi", sampling=sampling).get("temperature") is None
    assert parameters("mindie", sampling=sampling)["temperature"] == 0.5


@pytest.mark.parametrize("name", NAMES)
def test_neutral_values_are_omitted(name: str) -> None:
    sampling = Sampling(temperature=1.0, top_p=1.0, typical_p=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    parameters_sent = parameters(name, sampling=sampling)
    assert parameters_sent["temperature"] == 1.0
    assert not {"top_p", "typical_p", "presence_penalty"} & parameters_sent.keys()
    assert parameters_sent.get("frequency_penalty") == (0.0 if name == "tgi" else None)
    if name != "mindie":
        assert parameters_sent["do_sample"] is True


@pytest.mark.parametrize(
    ("grammar", "value"),
    [
        (Grammar("json_schema", {"properties": {}}), {"type": "json", "value": {"properties": {}}}),
        (
            Grammar("json_schema", {"properties": {}}, "x", True),
            {"type": "json_schema", "value": {"name": "x", "strict": True, "schema": {"properties": {}}}},
        ),
    ],
)
def test_grammar(grammar: Grammar, value: Any) -> None:
    assert parameters("tgi", grammar=grammar)["grammar"] == value


def test_unknown_fields_are_forwarded() -> None:
    extra = {"model": "x", "parameters": {"max_retries": 0, "details": 5}}
    body = sent("tgi", having(extra=extra))
    assert body["model"] == "x"
    assert body["parameters"]["max_retries"] == 0
    assert body["parameters"]["details"] is True
    assert extra["parameters"] == {"max_retries": 0, "details": 5}


JPEG = "/9j/4AAQ"
TURN = ChatPrompt((Message("user", (TextPart("a"), ImagePart("/b.png", "path"))),))


@pytest.mark.parametrize(
    ("name", "prompt", "inputs"),
    [
        ("tgi", TextPrompt("a", (ImagePart("https://b/c", "url"),)), "![](https://b/c)a"),
        ("tgi", TextPrompt("a", (ImagePart("data:image/png;base64,x", "data"),)), "![](data:image/png;base64,x)a"),
        ("tgi", TextPrompt("ab", (ImagePart("https://b/c", "url"),), (1,)), "a![](https://b/c)b"),
        ("tgi", TextPrompt("a", (ImagePart(JPEG, "data"),)), f"![](data:image/jpeg;base64,{JPEG})a"),
        ("tgi", TextPrompt("a", (ImagePart("iVBORw0KGgo=", "data"),)), "![](data:image/png;base64,iVBORw0KGgo=)a"),
        ("mindie", TURN, [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "/b.png"}]),
        ("mindie", ChatPrompt((Message("user", "a"),)), [{"type": "text", "text": "a"}]),
    ],
)
def test_inputs(name: str, prompt: Prompt, inputs: Any) -> None:
    assert sent(name, having(prompts=(prompt,)))["inputs"] == inputs


CHATS = [
    ChatPrompt((Message("system", "a"), Message("user", "b"))),
    ChatPrompt((Message("assistant", "a"),)),
    ChatPrompt((Message("user", None),)),
    ChatPrompt(()),
]
OPENAI = Origin("openai", "openai", "chat")
TOOL = Tool("f")


@pytest.mark.parametrize(
    ("name", "feature", "fields"),
    [
        *[(name, "prompts", {"prompts": PLAIN.prompts * 2}) for name in NAMES],
        *[(name, "token_prompts", {"prompts": (TokensPrompt((1,)),)}) for name in NAMES],
        *[(name, "chat", {"prompts": (chat,)}) for name in ("tgi", "mindie") for chat in CHATS],
        ("tgi", "chat", {"prompts": (TURN,)}),
        ("tgi", "images", {"prompts": (TextPrompt("a", (ImagePart("/b", "path"),)),)}),
        ("mindie", "images", {"prompts": (TextPrompt("a", (ImagePart("https://b", "url"),)),)}),
        ("tgi", "tools", {"tools": (TOOL,)}),
        ("tgi", "suffix", {"suffix": "a"}),
        ("tgi", "logit_bias", {"sampling": Sampling(logit_bias=((1, 1.0),))}),
        ("tgi", "min_p", {"sampling": Sampling(min_p=0.1)}),
        ("tgi", "presence_penalty", {"sampling": Sampling(presence_penalty=0.1)}),
        ("tgi-0.9", "frequency_penalty", {"sampling": Sampling(frequency_penalty=0.1)}),
        ("mindie", "typical_p", {"sampling": Sampling(typical_p=0.5)}),
        ("mindie", "watermark", {"sampling": Sampling(watermark=True)}),
        ("tgi", "min_new_tokens", {"stopping": Stopping(min_new_tokens=1)}),
        ("tgi", "stop_token_ids", {"stopping": Stopping(stop_token_ids=(1,))}),
        ("tgi", "ignore_eos", {"stopping": Stopping(ignore_eos=True)}),
        ("tgi", "n", {"n": 2}),
        ("tgi", "n", {"n": 2, "stream": True, "sampling": Sampling(temperature=1.0)}),
        ("mindie", "n", {"n": 2, "sampling": Sampling(temperature=1.0)}),
        ("tgi", "best_of", {"best_of": 2}),
        ("tgi", "prompt_logprobs", {"prompt_logprobs": True, "stream": True}),
        ("mindie", "logprobs", {"logprobs": True, "origin": OPENAI}),
        ("mindie", "top_logprobs", {"top_logprobs": 1}),
        ("tgi-0.9", "top_logprobs", {"top_logprobs": 1}),
        ("tgi", "grammar", {"grammar": Grammar("json_object")}),
        ("tgi-0.9", "grammar", {"grammar": Grammar("regex", "a")}),
        ("mindie", "grammar", {"grammar": Grammar("regex", "a")}),
        ("tgi-0.9", "lora_adapters", {"lora_adapter": "x"}),
    ],
)
def test_a_request_that_the_dialect_cannot_express_is_refused(name: str, feature: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature) as raised:
        client(name).encode(having(**fields))
    assert raised.value.feature == feature


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("tgi", {"tools": (TOOL,), "tool_choice": ToolChoice("none")}),
        ("tgi", {"n": 2, "sampling": Sampling(temperature=1.0)}),
        ("tgi", {"prompt_logprobs": True}),
        ("mindie", {"lora_adapter": "x"}),
    ],
)
def test_a_request_that_the_dialect_can_express_is_accepted(name: str, fields: dict[str, Any]) -> None:
    assert client(name).encode(having(**fields))
