"""Structured output of the bundled model: its training chats, their masks, and the tool that measures it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoTokenizer

from backends.native.demo import WEIGHTS
from tools.demo_model.batches import IGNORED, collate, label
from tools.demo_model.evaluate_schemas import draw_request
from tools.demo_model.masks import AnswerMasks
from tools.demo_model.model import build_model
from tools.demo_model.samples.chats import Chat, assistant, user
from tools.demo_model.samples.schema_chats import held_out, schema_chat
from tools.demo_model.samples.schemas import draw_object
from tools.demo_model.samples.tool_chats import tool_chat
from tools.demo_model.train import answer_loss
from tools.demo_model.vocabulary import NAMES_OF_PROPERTIES, UNSEEN_PROPERTIES

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(WEIGHTS)


@pytest.fixture(scope="module")
def masks(tokenizer):
    return AnswerMasks(tokenizer)


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


def test_each_answer_is_one_that_its_grammar_allows_and_has_labels_where_there_is_a_choice(tokenizer, masks) -> None:
    calls = objects = 0
    for seed in range(150):
        chat = schema_chat(Random(seed))
        ids, labels, allowed = label(tokenizer, chat, masks)  # raises if the grammar does not allow the answer
        if chat.held is None:
            assert not allowed
            continue
        calls += bool(chat.held.tools)
        objects += chat.held.grammar is not None
        assert [place for place, token in enumerate(labels) if token != IGNORED] == list(allowed)
        for place, mask in allowed.items():
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            assert bits[ids[place]]
            assert bits.sum() > 1
    assert min(calls, objects) > 40


def test_an_answer_that_its_grammar_does_not_allow_is_refused(tokenizer, masks) -> None:
    held = draw_request(Random(3), 0, 0.0, NAMES_OF_PROPERTIES)
    with pytest.raises(ValueError, match="does not allow"):
        label(tokenizer, Chat([user("Hello"), assistant("Hi")], held=held), masks)


def test_tokens_that_the_grammar_does_not_allow_take_no_part_in_the_loss(tokenizer, masks) -> None:
    model = build_model(0)
    held = next(chat for chat in map(schema_chat, map(Random, range(99))) if chat.held)
    free = Chat([user("Hello"), assistant("Hi")])
    samples = [label(tokenizer, chat, masks) for chat in (held, free)]
    loss, _ = answer_loss(model, collate(samples, None))
    total, count = torch.zeros(()), 0
    for ids, labels, allowed in samples:
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        for place, token in enumerate(labels):
            if token == IGNORED:
                continue
            row = logits[place - 1]
            if place in allowed:
                bits = np.unpackbits(allowed[place].view(np.uint8), bitorder="little")
                row = row.where(torch.from_numpy(bits) == 1, -torch.inf)
            total, count = total + functional.cross_entropy(row, torch.tensor(token)), count + 1
    torch.testing.assert_close(loss, total / count)


def test_what_the_evaluation_asks_for_is_never_trained_on() -> None:
    names: set[str] = set()

    def read(schema) -> None:
        for name, inside in schema.get("properties", {}).items():
            names.add(name)
            read(inside)

    for seed in range(600):
        chat = schema_chat(Random(seed))
        for tool in (*(chat.tools or ()), *(tool_chat(Random(seed)).tools or ())):
            read(tool["function"]["parameters"])
        assert not any(held_out(tool["function"]["parameters"]) for tool in chat.tools or ())
        if chat.held and chat.held.grammar and chat.held.grammar.kind == "json_schema":
            read(chat.held.grammar.value)
            assert not held_out(chat.held.grammar.value)
    assert set(NAMES_OF_PROPERTIES) <= names
    assert not names & set(UNSEEN_PROPERTIES)


def test_objects_and_calls_take_turns() -> None:
    one, other = (draw_request(Random(3), number, 0.0, NAMES_OF_PROPERTIES) for number in range(2))
    assert one.grammar is not None
    assert not one.tools
    assert other.grammar is None
    assert other.tools[0].parameters == one.grammar.value
    assert held_out(one.grammar.value)
