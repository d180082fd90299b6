"""MindIE's page "推理接口", table by table: each parameter has its effect, or is refused in the page's words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.errors import InvalidRequest
from schemas.ir import (
    ChatPrompt,
    Delta,
    Finished,
    FinishReason,
    Message,
    Sampling,
    Started,
    Stopping,
    Token,
    ToolChoice,
    Usage,
)
from tests.adapters.openai.scenes import chat, server

U64 = 2**64


def refusal(ask: Any, *args: Any, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        ask(*args, **fields)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({}, Sampling(do_sample=True)),
        ({"presence_penalty": 1.03}, Sampling(do_sample=True, presence_penalty=1.03)),
        ({"frequency_penalty": -2}, Sampling(do_sample=True, frequency_penalty=-2.0)),
        ({"seed": 1}, Sampling(do_sample=True, seed=1)),
        ({"seed": U64 - 1}, Sampling(do_sample=True, seed=U64 - 1)),
        ({"seed": None}, Sampling(do_sample=True)),
        ({"temperature": 0.5}, Sampling(do_sample=True, temperature=0.5)),
        ({"top_p": 0.95}, Sampling(do_sample=True, top_p=0.95)),
        ({"top_p": 1}, Sampling(do_sample=True, top_p=1.0)),
    ],
)
def test_sampling(fields: dict[str, Any], sampling: Sampling) -> None:
    assert chat("mindie-openai", **fields).sampling == sampling


def test_a_limit_beyond_the_context_is_capped_by_the_backend() -> None:
    request = chat("mindie-openai", max_tokens=2147483647)
    assert (request.stopping.max_new_tokens, request.overflow) == (2147483647, "truncate")


def test_a_tools_result_needs_role_and_content_only() -> None:
    turns = [{"role": "user", "content": "2+2?"}, {"role": "tool", "content": "4"}]
    (prompt,) = chat("mindie-openai", messages=turns).prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[1] == Message("tool", "4")


def test_parameters_that_are_not_about_sampling() -> None:
    turns = [{"role": role, "content": role} for role in ("system", "user", "assistant")]
    tool = {"role": "tool", "content": "4", "tool_call_id": "c"}
    request = chat("mindie-openai", model="gpt-3.5", messages=[*turns, tool], max_tokens=20, stream=True)
    assert request.model == "gpt-3.5"
    messages = (
        *(Message(role, role) for role in ("system", "user", "assistant")),
        Message("tool", "4", tool_call_id="c"),
    )
    assert request.prompts == (ChatPrompt(messages),)
    assert request.stopping == Stopping(max_new_tokens=20)
    assert request.stream
    assert not chat("mindie-openai").stream


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", 0, "Parameter temperature must be in (0.0, 2.0], got 0."),
        ("temperature", 2.5, "Parameter temperature must be in (0.0, 2.0], got 2.5."),
        ("top_p", 0, "Parameter top_p must be in (0.0, 1.0], got 0."),
        ("top_p", 1.5, "Parameter top_p must be in (0.0, 1.0], got 1.5."),
        ("presence_penalty", 2.5, "Parameter presence_penalty must be in [-2.0, 2.0], got 2.5."),
        ("frequency_penalty", -2.5, "Parameter frequency_penalty must be in [-2.0, 2.0], got -2.5."),
        ("seed", 0, "Parameter seed must be in (0, 18446744073709551615], got 0."),
        ("max_tokens", 0, "Parameter max_tokens must be in (0, 18446744073709551615], got 0."),
        ("n", 2, "Parameter n must be 1, got 2."),
        ("model", "-chat", "The format of model is invalid."),
        ("model", "chat_", "The format of model is invalid."),
        ("model", "org/chat", "The format of model is invalid."),
        ("model", "a" * 257, "The format of model is invalid."),
        (
            "messages",
            [{"role": "developer", "content": "a"}],
            "Invalid value: 'developer'. Supported values are: 'system', 'user', 'assistant', and 'tool'.",
        ),
        (
            "messages",
            [{"role": "user", "content": ""}],
            "Invalid 'messages[0].content': the content must not be empty.",
        ),
        (
            "messages",
            [{"role": "user", "content": "ab" * 2**17}, {"role": "user", "content": "字" * (2**18 + 1)}],
            "Messages length must be in (0, 524288], but got 524289.",
        ),
    ],
)
def test_refusals(field: str, value: Any, message: str) -> None:
    assert refusal(chat, "mindie-openai", **{field: value}).message == message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0001),
        ("temperature", 2),
        ("top_p", 1),
        ("seed", 1),
        ("seed", U64 - 1),
        ("seed", None),
        ("max_tokens", 1),
        ("n", 1),
        ("model", "a"),
        ("model", "gpt-3.5-turbo"),
        ("model", "a" * 256),
        ("messages", [{"role": "user", "content": "字" * 2**19}]),
    ],
)
def test_edges(field: str, value: Any) -> None:
    chat("mindie-openai", **{field: value})


def test_fields_that_the_page_does_not_list_are_unknown() -> None:
    request = chat("mindie-openai", top_k=5, stream=True, stream_options={"include_usage": True})
    assert request.sampling.top_k is None
    assert not request.stream_usage
    assert request.extra == {"top_k": 5, "stream_options": {"include_usage": True}}
    assert request.unknown == ("top_k", "stream_options")


def test_stop_sequences_and_tools_are_taken_though_the_page_does_not_list_them() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    request = chat("mindie-openai", stop=["a"], tools=tools, tool_choice="required")
    assert request.stopping.stop == ("a",)
    assert [tool.name for tool in request.tools] == ["f"]
    assert request.tool_choice == ToolChoice("required")
    assert request.unknown == ()


def test_the_servers_limit_caps_max_tokens() -> None:
    limits = {"max_iter_times": 100}
    assert chat("mindie-openai", options=limits).stopping.max_new_tokens == 100
    assert chat("mindie-openai", options=limits, max_tokens=500).stopping.max_new_tokens == 100
    assert chat("mindie-openai", options=limits, max_tokens=5).stopping.max_new_tokens == 5
    assert chat("mindie-openai").stopping.max_new_tokens is None


def test_a_chunk_has_one_token() -> None:
    request, codec = chat("mindie-openai", stream=True), server("mindie-openai")
    tokens = (Token(1, "Hel"), Token(2, ""), Token(3, "lo"), Token(4, "</s>", special=True))
    end = Finished(text="Hello", tokens=tokens, reason=FinishReason.EOS)
    written = codec.encoder(request).feed((Started("m"), Delta(text="Oh", tokens=(Token(9, "Oh"),)), end, Usage(1, 5)))
    chunks = [json.loads(line[6:])["choices"][0] for line in written.splitlines() if line.startswith(b"data: {")]
    assert [chunk["delta"].get("content") for chunk in chunks] == ["Oh", "Hel", "lo", None]
    assert all(chunk["delta"]["role"] == "assistant" for chunk in chunks[:-1])
    assert chunks[-1]["finish_reason"] == "eos_token"
