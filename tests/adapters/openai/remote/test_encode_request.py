"""Requests that the client codec sends, and those that it refuses."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from adapters.databricks import ADAPTER as DATABRICKS
from adapters.openai import ADAPTER, BESIDE_RESPONSES
from adapters.openai.client import OpenAIClient
from adapters.openai.dialects import Dialect
from adapters.openai.remote.encode_request import _fields, _is_plain, _is_written_plainly, _plain_fields
from schemas.errors import (
    UnsupportedFeature,
)
from schemas.ir import (
    ChatPrompt,
    Generate,
    Grammar,
    ImagePart,
    Message,
    Origin,
    Sampling,
    Stopping,
    TemplateOptions,
    TextPart,
    TextPrompt,
    TokensPrompt,
    Tool,
    ToolCall,
    ToolChoice,
)
from tests.adapters.openai.remote_scenes import asked, talk
from tests.adapters.openai.scenes import chat, client, completion


def body(request: Generate, codec: OpenAIClient | None = None) -> dict[str, Any]:
    return json.loads((codec or client()).encode(request).body)


def test_a_user_with_a_longer_name_than_openai_takes_is_sent_as_its_digest() -> None:
    """Claude Code's `metadata.user_id` has 150 characters."""
    for request in (talk(user="u" * 65), talk(user="u" * 65, n=2)):  # the plain way, and the full one
        assert body(request)["user"] == sha256(b"u" * 65).hexdigest()
    assert body(talk(user="u" * 64))["user"] == "u" * 64


def test_a_choice_among_tools_is_sent_with_tools_alone() -> None:
    without = talk(tool_choice=ToolChoice("none"), parallel_tool_calls=False)
    assert body(without) == body(talk())
    assert body(replace(without, tools=(Tool("f"),))).keys() >= {"tools", "tool_choice", "parallel_tool_calls"}


def test_a_limit_has_the_name_that_openais_reasoning_models_take() -> None:
    codec = BESIDE_RESPONSES.client(BESIDE_RESPONSES.dialects["openai"])
    for n in (1, 2):
        sent = body(talk(n=n, stopping=Stopping(max_new_tokens=5)), codec)
        assert (sent.get("max_tokens"), sent["max_completion_tokens"]) == (None, 5)


def test_a_raw_prompt() -> None:
    outbound = client().encode(asked(stopping=Stopping(max_new_tokens=5, stop=("a",))))
    assert outbound.path == "/completions"
    assert json.loads(outbound.body) == {
        "model": "up",
        "max_tokens": 5,
        "prompt": "Once",
        "temperature": 0.0,
        "stop": ["a"],
    }


def test_a_completion_without_limit_sends_a_null_limit() -> None:
    assert body(asked()) == {"model": "up", "max_tokens": None, "prompt": "Once", "temperature": 0.0}


def test_a_text_that_needs_the_template_is_sent_as_a_message() -> None:
    outbound = client().encode(asked(raw_prompt=False, sampling=Sampling(do_sample=True)))
    assert outbound.path == "/chat/completions"
    assert json.loads(outbound.body) == {"model": "up", "messages": [{"role": "user", "content": "Once"}]}


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (TemplateOptions(False, True), {"add_generation_prompt": False, "continue_final_message": True}),
        (TemplateOptions(False), {"add_generation_prompt": False}),
    ],
)
def test_where_the_text_of_a_chat_ends_is_said_as_vllm_reads_it(options: TemplateOptions, fields: Any) -> None:
    request = replace(talk(), prompts=(ChatPrompt((Message("user", "Hello"),), options),))
    assert body(request) == {"model": "up", "messages": [{"role": "user", "content": "Hello"}]} | fields
    mindie = ADAPTER.client(ADAPTER.dialects["mindie-openai"])
    with pytest.raises(UnsupportedFeature, match="template options"):
        mindie.encode(request)


def test_streams_are_asked_for_their_usage() -> None:
    assert body(talk(stream=True)) == {
        "model": "up",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert "stream_options" not in body(talk(stream=True), client(ask_usage=False))


def test_every_field_of_a_chat() -> None:
    request = talk(
        Message("system", "Be brief."),
        Message("user", (TextPart("What?"), ImagePart("/9j/AA", "data", "low"), ImagePart("http://a/b", "url"))),
        Message("assistant", None, tool_calls=(ToolCall("c", "f", "{}"),), reasoning="Hm."),
        Message("tool", "4", tool_call_id="c"),
        sampling=Sampling(
            do_sample=True,
            temperature=0.5,
            top_k=3,
            top_p=0.9,
            min_p=0.1,
            repetition_penalty=1.5,
            presence_penalty=1.0,
            frequency_penalty=-1.0,
            logit_bias=((7, 1.0),),
            seed=2**64 - 1,
        ),
        stopping=Stopping(9, 2, ("a",), (5,), ignore_eos=True, include_stop=True),
        n=2,
        truncate_prompt_tokens=8,
        logprobs=True,
        top_logprobs=3,
        tools=(Tool("f", "d", {"type": "object"}, True), Tool("g")),
        tool_choice=ToolChoice("allowed", ("f",), required=True),
        parallel_tool_calls=False,
        grammar=Grammar("json_schema", {"type": "object"}, "a", True),
        user="u",
        hints={"reasoning_effort": "low", "priority": 3},
        extra={"details": True},
    )
    assert body(request) == {
        "model": "up",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What?"},
                    {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/AA", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "http://a/b"}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                "reasoning_content": "Hm.",
            },
            {"role": "tool", "content": "4", "tool_call_id": "c"},
        ],
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "logit_bias": {"7": 1.0},
        "seed": -1,
        "max_tokens": 9,
        "min_tokens": 2,
        "stop": ["a"],
        "stop_token_ids": [5],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "n": 2,
        "truncate_prompt_tokens": 8,
        "logprobs": True,
        "top_logprobs": 3,
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            },
            {"type": "function", "function": {"name": "g"}},
        ],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
        },
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True},
        },
        "user": "u",
        "reasoning_effort": "low",
    }


@pytest.mark.parametrize(
    ("request_", "feature"),
    [
        (asked(prompt_logprobs=True, stream=True), "prompt_logprobs"),
        (talk(prompt_logprobs=True), "prompt_logprobs"),
        (asked(grammar=Grammar("regex", "a+")), "grammar"),
        (asked(sampling=Sampling(watermark=True)), "watermark"),
        (asked(sampling=Sampling(typical_p=0.9)), "typical_p"),
        (asked(lora_adapter="a"), "lora_adapters"),
        (asked(tools=(Tool("f"),)), "tools"),
        (asked(best_of=2, stream=True), "best_of"),
        (talk(best_of=2), "best_of"),
        (talk(suffix="a"), "suffix"),
        (talk(Message("user", (ImagePart("/a.png", "path"),))), "images"),
        (Generate(id="r", model="m", prompts=(TextPrompt("a", (ImagePart("b", "url"),)),)), "images"),
        (Generate(id="r", model="m", prompts=(TokensPrompt((1,)),), raw_prompt=False), "token_prompts"),
        (Generate(id="r", model="m", prompts=(TextPrompt("a"), TextPrompt("b")), raw_prompt=False), "several_prompts"),
    ],
)
def test_requests_that_the_protocol_cannot_express_are_refused(request_: Generate, feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        client().encode(request_)
    assert caught.value.feature == feature


@pytest.mark.parametrize(
    ("request_", "feature"),
    [
        (talk(n=2), "n"),
        (talk(logprobs=True), "logprobs"),
        (talk(grammar=Grammar("json_object")), "grammar"),
        (talk(sampling=Sampling(do_sample=True, top_k=3)), "top_k"),
    ],
)
def test_requests_that_mindie_cannot_express_are_refused(request_: Generate, feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        client("mindie-openai").encode(request_)
    assert caught.value.feature == feature


def test_mindies_server_takes_tools_and_stop_sequences() -> None:
    request = talk(stopping=Stopping(stop=("a",)), tools=(Tool("f"),), tool_choice=ToolChoice("auto"))
    sent = body(request, client("mindie-openai"))
    assert (sent["stop"], sent["tool_choice"]) == (["a"], "auto")
    assert sent["tools"] == [{"type": "function", "function": {"name": "f"}}]


def test_every_field_of_mindies_page() -> None:
    request = talk(sampling=Sampling(), stopping=Stopping(20), user="u", stream=True)
    assert body(request, client("mindie-openai")) == {
        "model": "up",
        "messages": [{"role": "user", "content": "Hello"}],
        "temperature": 0.001,  # a temperature of 0 is out of its range
        "max_tokens": 20,
        "stream": True,
    }


# --- relays ----------------------------------------------------------------------------------------------------------


def relayed(sent: bytes, operation: str = "chat", **fields: Any) -> bytes:
    origin = Origin("openai", "openai", operation, sent)
    return client().encode(Generate(id="r", model="up", prompts=(ChatPrompt(()),), origin=origin, **fields)).body


def test_a_relayed_body_changes_in_its_model_only() -> None:
    sent = b'{"messages":[],"big":12345678901234567890123,"model":"chat","x":{"y":1.50e3,"z":"\\u00eb"},"seed":null}'
    assert relayed(sent) == sent.replace(b'"model":"chat"', b'"model":"up"')


def test_a_relayed_stream_is_asked_for_its_usage() -> None:
    sent = b'{"model":"chat","stream":true}'
    assert relayed(sent, stream=True) == b'{"model":"up","stream":true,"stream_options":{"include_usage":true}}'
    asking = b'{"model":"up","stream":true,"stream_options":{"include_usage":true,"x":1}}'
    assert relayed(asking, stream=True, stream_usage=True) == asking


def test_a_relayed_body_streams_by_the_dialects_default() -> None:
    assert b'"stream":true' in relayed(b'{"model":"chat"}', stream=True)


def test_a_relayed_body_does_not_ask_for_the_echo_of_a_known_prompt() -> None:
    def sent(request: Generate) -> dict[str, Any]:
        return json.loads(client().encode(request).body)

    assert sent(completion(echo=True)) == {"model": "chat", "prompt": "Once"}
    assert sent(completion(echo=True, logprobs=1))["echo"] is True
    assert sent(completion(echo=True, prompt=[1, 2]))["echo"] is True


def test_other_dialects_are_not_relayed() -> None:
    request = chat("mindie-openai", top_k=5)
    assert "top_k" not in json.loads(client().encode(request).body)


@given(
    raw=st.booleans(),
    stream=st.booleans(),
    sampling=st.builds(
        Sampling,
        do_sample=st.sampled_from((None, True, False)),
        temperature=st.sampled_from((None, 0.0, 0.5)),
        top_k=st.sampled_from((None, 3)),
        top_p=st.sampled_from((None, 0.5)),
        presence_penalty=st.sampled_from((None, 0.5)),
        frequency_penalty=st.sampled_from((None, 0.0)),
        seed=st.sampled_from((None, 0, 7, 2**64 - 1)),
        seed_drawn=st.booleans(),
    ),
    stopping=st.builds(
        Stopping,
        max_new_tokens=st.sampled_from((None, 5)),
        stop=st.sampled_from(((), ("a", "b"))),
        include_stop=st.booleans(),
    ),
    user=st.sampled_from((None, "u")),
    dialect=st.sampled_from([*ADAPTER.dialects.values(), *DATABRICKS.dialects.values()]),
)
def test_plain_requests_are_written_as_all_others(dialect: Dialect, raw: bool, **fields: Any) -> None:
    request = (asked if raw else talk)(**fields)
    assert _is_plain(request)
    assert _is_written_plainly(request)
    assert json.dumps(_plain_fields(dialect, request)) == json.dumps(_fields(dialect, request))
