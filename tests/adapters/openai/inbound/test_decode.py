"""Requests decoded to the IR, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.ir import (
    SMALLEST_TOP_P,
    ChatPrompt,
    Grammar,
    ImagePart,
    Message,
    Sampling,
    Stopping,
    TextPart,
    TextPrompt,
    TokensPrompt,
    Tool,
    ToolCall,
    ToolChoice,
)
from tests.adapters.openai.scenes import HELLO, chat, completion, embed


def test_a_chat_samples_without_a_limit_by_default() -> None:
    request = chat()
    assert (request.id, request.model) == ("r1", "chat")
    assert request.prompts == (ChatPrompt((Message("user", "Hello"),)),)
    assert request.sampling == Sampling(do_sample=True)
    assert not request.sampling.greedy
    assert request.stopping == Stopping()
    assert not request.stream
    assert not request.raw_prompt
    assert not request.echo


def test_a_completion_is_raw_and_limited_to_16_tokens_by_default() -> None:
    request = completion()
    assert request.prompts == (TextPrompt("Once"),)
    assert request.raw_prompt
    assert request.stopping == Stopping(max_new_tokens=16)
    assert completion(max_tokens=None).stopping == Stopping(max_new_tokens=16)


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"temperature": 0}, Sampling(do_sample=True, temperature=0.0)),
        ({"temperature": 1.5}, Sampling(do_sample=True, temperature=1.5)),
        ({"top_p": 0.5}, Sampling(do_sample=True, top_p=0.5)),
        ({"top_p": 0}, Sampling(do_sample=True, top_p=SMALLEST_TOP_P)),
        ({"top_k": 5}, Sampling(do_sample=True, top_k=5)),
        ({"top_k": -1}, Sampling(do_sample=True)),
        ({"top_k": 0}, Sampling(do_sample=True)),
        ({"min_p": 0.1}, Sampling(do_sample=True, min_p=0.1)),
        ({"min_p": 0}, Sampling(do_sample=True)),
        ({"typical_p": 0.9}, Sampling(do_sample=True, typical_p=0.9)),
        ({"repetition_penalty": 1.1}, Sampling(do_sample=True, repetition_penalty=1.1)),
        ({"presence_penalty": 1}, Sampling(do_sample=True, presence_penalty=1.0)),
        ({"frequency_penalty": -1}, Sampling(do_sample=True, frequency_penalty=-1.0)),
        ({"seed": 7}, Sampling(do_sample=True, seed=7)),
        ({"seed": -1}, Sampling(do_sample=True, seed=2**64 - 1)),
        ({"logit_bias": {"5": 1.5, "7": -100}}, Sampling(do_sample=True, logit_bias=((5, 1.5), (7, -100.0)))),
    ],
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_sampling(ask: Any, fields: dict[str, Any], sampling: Sampling) -> None:
    request = ask(**fields)
    assert request.sampling == sampling
    assert request.sampling.greedy == (fields.get("temperature") == 0)


@pytest.mark.parametrize(
    ("fields", "stopping"),
    [
        ({"max_tokens": 5}, Stopping(max_new_tokens=5)),
        ({"stop": "a", "max_tokens": 5}, Stopping(max_new_tokens=5, stop=("a",))),
        ({"stop": ["a", "b"], "max_tokens": 5}, Stopping(max_new_tokens=5, stop=("a", "b"))),
        ({"ignore_eos": True, "max_tokens": 5}, Stopping(max_new_tokens=5, ignore_eos=True)),
        ({"min_tokens": 2, "max_tokens": 5}, Stopping(max_new_tokens=5, min_new_tokens=2)),
        ({"stop_token_ids": [1, 2], "max_tokens": 5}, Stopping(max_new_tokens=5, stop_token_ids=(1, 2))),
        ({"include_stop_str_in_output": True, "max_tokens": 5}, Stopping(max_new_tokens=5, include_stop=True)),
    ],
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_stopping(ask: Any, fields: dict[str, Any], stopping: Stopping) -> None:
    assert ask(**fields).stopping == stopping


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert chat(max_tokens=5, max_completion_tokens=9).stopping.max_new_tokens == 9


def test_completions_may_ask_for_the_prompt_alone() -> None:
    request = completion(max_tokens=0, echo=True, logprobs=1)
    assert request.stopping.max_new_tokens == 0
    assert request.prompt_logprobs


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", (TextPrompt("a"),)),
        (["a", "b"], (TextPrompt("a"), TextPrompt("b"))),
        ([1, 2], (TokensPrompt((1, 2)),)),
        ([[1, 2], [3]], (TokensPrompt((1, 2)), TokensPrompt((3,)))),
    ],
)
def test_prompts(prompt: Any, prompts: tuple[Any, ...]) -> None:
    assert completion(prompt=prompt).prompts == prompts
    assert embed(input=prompt).inputs == prompts


def test_completion_options() -> None:
    request = completion(n=2, best_of=4, suffix=" end", logprobs=0, user="u", truncate_prompt_tokens=9)
    assert (request.n, request.best_of, request.suffix, request.user) == (2, 4, " end", "u")
    assert (request.logprobs, request.top_logprobs, request.prompt_logprobs) == (True, 0, False)
    assert request.truncate_prompt_tokens == 9
    assert completion(best_of=1).best_of is None
    assert completion(suffix="").suffix is None


def test_stream_options() -> None:
    request = chat(stream=True, stream_options={"include_usage": True, "include_obfuscation": False})
    assert request.stream
    assert request.stream_usage
    assert not chat(stream=True, stream_options={}).stream_usage
    assert chat(options={"stream_default": True}).stream
    assert not chat(options={"stream_default": True}, stream=False).stream


def messages(*given: dict[str, Any]) -> tuple[Message, ...]:
    [prompt] = chat(messages=given).prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def test_a_conversation_with_tools() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert messages(
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi", "name": "Zoë"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "reasoning": "Hm."},
    ) == (
        Message("developer", "Be brief."),
        Message("user", "Hi", name="Zoë"),
        Message("assistant", None, tool_calls=(ToolCall("c1", "f", '{"a": 1}'),), reasoning="Hm."),
        Message("tool", "4", tool_call_id="c1"),
        Message("assistant", "No."),
        Message("assistant", (TextPart("No."),), reasoning="Hm."),
    )


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://example.org/a.png", "url"),
        ("http://example.org/a.png", "url"),
        ("data:image/png;base64,iVBORw0KGgo=", "data"),
        ("iVBORw0KGgoAAAA", "data"),
        ("/9j/4AAQSkZJRg", "data"),
        ("/home/a.jpg", "path"),
        ("/9j/a.jpg", "path"),
    ],
)
def test_images(url: str, kind: Any) -> None:
    [message] = messages(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What?"},
                {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
                {"type": "image_url", "image_url": url},
            ],
        }
    )
    assert message.content == (TextPart("What?"), ImagePart(url, kind, "low"), ImagePart(url, kind))


FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}, "strict": True}
TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "g"}}]


def test_tools() -> None:
    request = chat(tools=TOOLS, parallel_tool_calls=False)
    assert request.tools == (Tool("f", "d", {"type": "object", "properties": {}}, True), Tool("g"))
    assert request.parallel_tool_calls is False
    assert request.tool_choice is None
    assert chat(tools=[]).tools == ()


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ("none", ToolChoice("none")),
        ("auto", ToolChoice("auto")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "g"}}, ToolChoice("named", ("g",))),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            ToolChoice("allowed", ("f",), required=True),
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            ToolChoice("allowed", ("f",)),
        ),
    ],
)
def test_tool_choice(given: Any, choice: ToolChoice) -> None:
    assert chat(tools=TOOLS, tool_choice=given).tool_choice == choice


def test_tool_choice_without_tools() -> None:
    assert chat(tool_choice="auto").tool_choice is None
    assert chat(tool_choice="none").tool_choice == ToolChoice("none")


SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "$defs": {}}


@pytest.mark.parametrize(
    ("given", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Grammar("json_object")),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}},
            Grammar("json_schema", SCHEMA, "a", True),
        ),
        ({"type": "json_object", "value": SCHEMA}, Grammar("json_schema", SCHEMA)),
        ({"type": "json", "value": SCHEMA}, Grammar("json_schema", SCHEMA)),
        ({"type": "regex", "value": "a+"}, Grammar("regex", "a+")),
    ],
)
@pytest.mark.parametrize("ask", [chat, completion])
def test_response_format(ask: Any, given: Any, grammar: Grammar | None) -> None:
    assert ask(response_format=given).grammar == grammar


def test_fields_without_effect_on_the_answer_become_hints() -> None:
    hints = {
        "reasoning_effort": "high",
        "verbosity": "low",
        "service_tier": "flex",
        "metadata": {"a": "b"},
        "store": True,
        "prediction": {"type": "content", "content": "a"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "chat_template_kwargs": {"enable_thinking": False},
        "skip_special_tokens": True,
    }
    request = chat(**hints, modalities=["text"], user="u")
    assert request.hints == hints
    assert request.user == "u"
    assert request.extra == {}


def test_logprobs() -> None:
    request = chat(logprobs=True, top_logprobs=20)
    assert (request.logprobs, request.top_logprobs) == (True, 20)
    assert not chat(logprobs=False).logprobs
    assert chat(logprobs=True, top_logprobs=0).top_logprobs == 0


def test_embeddings() -> None:
    request = embed(encoding_format="base64", dimensions=8, user="u", truncate="END")
    assert (request.encoding, request.dimensions, request.user) == ("base64", 8, "u")
    assert request.extra == {"truncate": "END"}
    assert embed().encoding == "float"


def test_the_body_of_the_official_sdk() -> None:
    request = chat(messages=HELLO, stream=False, extra_headers=None)
    assert not request.stream
