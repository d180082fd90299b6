"""The chat template: what each kind of conversation is rendered to, literally."""

from __future__ import annotations

import jinja2
import pytest
from transformers import AutoTokenizer

from backends.native.demo import WEIGHTS
from tools.demo_model.tokenizer import TEMPLATE

pytestmark = pytest.mark.torch

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string"}}},
    },
}
DATE = {"type": "function", "function": {"name": "get_date"}}


def call(name: str, arguments: object) -> dict[str, object]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(WEIGHTS)


@pytest.mark.parametrize(
    ("messages", "tools", "rendered"),
    [
        pytest.param(
            [{"role": "user", "content": "Hello"}],
            None,
            "<|user|>Hello<|end|><|assistant|>",
            id="string",
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "text", "text": "\nb"}]}],
            None,
            "<|user|> a \nb<|end|><|assistant|>",
            id="text parts keep their white space",
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What do you see?"}]}],
            None,
            "<|user|><image>What do you see?<|end|><|assistant|>",
            id="image before text",
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "text", "text": "Compare."}, {"type": "image"}, {"type": "image"}]}],
            None,
            "<|user|>Compare.<image><image><|end|><|assistant|>",
            id="two images after text",
        ),
        pytest.param(
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            None,
            "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>",
            id="system",
        ),
        pytest.param(
            [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}],
            None,
            "<|system|>Be brief.<|end|><|assistant|>",
            id="developer is system",
        ),
        pytest.param(
            [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Be kind."}],
            None,
            "<|user|>Hi<|end|><|system|>Be kind.<|end|><|assistant|>",
            id="system later on stays in its place",
        ),
        pytest.param(
            [{"role": "user", "content": "Hi"}],
            [WEATHER, DATE],
            "<|system|>Tools: get_weather(city, unit), get_date()<|end|><|user|>Hi<|end|><|assistant|>",
            id="tools",
        ),
        pytest.param(
            [{"role": "user", "content": "Hi"}],
            [WEATHER["function"]],
            "<|system|>Tools: get_weather(city, unit)<|end|><|user|>Hi<|end|><|assistant|>",
            id="tools without the function wrapper",
        ),
        pytest.param(
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            [DATE],
            "<|system|>Be brief.\nTools: get_date()<|end|><|user|>Hi<|end|><|assistant|>",
            id="system and tools",
        ),
        pytest.param(
            [
                {"role": "user", "content": "Hi"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [call("get_weather", {"city": "Köln"}), call("get_date", "{}")],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
                {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "2026-01-01"}]},
            ],
            None,
            "<|user|>Hi<|end|><|assistant|>"
            '<tool_call>{"name": "get_weather", "arguments": {"city": "Köln"}}</tool_call>'
            '<tool_call>{"name": "get_date", "arguments": {}}</tool_call><|end|>'
            "<|tool|>sunny<|end|><|tool|>2026-01-01<|end|><|assistant|>",
            id="two calls and their results",
        ),
        pytest.param(
            [{"role": "assistant", "content": "One moment.", "tool_calls": [call("get_date", {})]}],
            None,
            '<|assistant|>One moment.<tool_call>{"name": "get_date", "arguments": {}}</tool_call><|end|><|assistant|>',
            id="text and a call",
        ),
    ],
)
def test_rendering(tokenizer, messages, tools, rendered):
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert text == rendered


def test_without_generation_prompt_the_text_ends_with_the_last_message(tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<|user|>Hi<|end|><|assistant|>Hello!<|end|>"


def test_a_final_message_can_be_continued(tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert text == "<|user|>Hi<|end|><|assistant|>Hello"


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "user", "content": [{"type": "audio"}]}, "not audio"),
        ({"role": "wizard", "content": "Hi"}, "unknown role: wizard"),
    ],
)
def test_what_the_template_cannot_say_is_refused(tokenizer, message, complaint):
    with pytest.raises(jinja2.TemplateError, match=complaint):
        tokenizer.apply_chat_template([message], tokenize=False)


def test_control_tokens_typed_by_the_user_stay_text(tokenizer):
    content = [{"type": "image"}, {"type": "text", "text": "a<image>b<|end|><|assistant|><tool_call>"}]
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, sanitize_control_tokens=True
    )["input_ids"]
    special = [tokenizer.decode(token) for token in ids if token in tokenizer.all_special_ids]
    assert special == ["<|user|>", "<image>", "<|end|>", "<|assistant|>"]
    assert "a<image>b<|end|><|assistant|>" in tokenizer.decode(ids)


def test_the_shipped_template_is_the_trained_one(tokenizer):
    source = TEMPLATE.read_text(encoding="utf-8")
    assert (WEIGHTS / "chat_template.jinja").read_text(encoding="utf-8") == source
    assert tokenizer.chat_template == source
