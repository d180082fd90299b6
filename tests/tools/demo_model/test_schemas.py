"""Structured output of the bundled model: its training chats, and the tool that measures it."""

from __future__ import annotations

import json
from random import Random

import pytest
from transformers import AutoTokenizer

from backends.native.demo import WEIGHTS
from tools.demo_model.batches import IGNORED, label
from tools.demo_model.evaluate_schemas import draw_request
from tools.demo_model.samples.schema_chats import draw_object, schema_chat

pytestmark = pytest.mark.torch


def test_a_drawn_object_is_of_its_schema() -> None:
    nested = 0
    for seed in range(200):
        filled = draw_object(Random(seed))
        assert list(filled.schema["properties"]) == list(filled.value) == filled.schema["required"]
        for name, kind in filled.schema["properties"].items():
            nested += kind["type"] == "object"
            expected = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}
            assert type(filled.value[name]) is expected[kind["type"]]
            assert filled.value[name] in kind.get("enum", [filled.value[name]])
    assert 20 < nested < 80


def test_the_opening_brace_is_not_learned_and_the_rest_is() -> None:
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    for seed in range(40):
        chat = schema_chat(Random(seed))
        answer = chat.messages[-1]
        calls = answer.get("tool_calls")
        written = json.dumps(calls[0]["function"]["arguments"]) + "}</tool_call>" if calls else answer["content"]
        learned = [token for token in label(tokenizer, chat)[1] if token != IGNORED]
        assert tokenizer.decode(learned) == written.removeprefix('{"') + "<|end|>"


def test_objects_and_calls_take_turns() -> None:
    one, other = (draw_request(Random(3), number, 0.0) for number in range(2))
    assert one.grammar is not None
    assert not one.tools
    assert other.grammar is None
    assert other.tools[0].parameters == one.grammar.value
