"""The shipped weights: small, loadable by plain Hugging Face classes, and as able as the documentation says.

The floors are well below the measured figures (``docs/demo-model.md``); questions are fresh ones.
"""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoProcessor

from backends.native.demo import WEIGHTS
from tools.demo_model.evaluate import DemoModel, accuracy, draw_questions
from tools.demo_model.evaluate_schemas import share_that_ends
from tools.demo_model.samples.chats import Chat, user
from tools.demo_model.samples.talk import ABILITIES, IDENTITY
from tools.demo_model.vocabulary import NAMES_OF_PROPERTIES, UNSEEN_PROPERTIES

pytestmark = pytest.mark.torch

FLOORS = {
    "one shape": 0.97,
    "two shapes": 0.95,
    "tool call": 0.95,
    "repeat": 0.93,
    "sum": 0.95,
    "answer from tool result": 0.95,
    "tools given, none needed": 0.95,
}


@pytest.fixture(scope="module")
def model():
    return DemoModel(WEIGHTS)


@pytest.mark.parametrize("task", FLOORS)
def test_accuracy_floor(model, task):
    assert accuracy(model, draw_questions(task, seed=2, samples=200)) >= FLOORS[task]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Hello", "Hello! How can I help you today?"),
        ("Who are you?", IDENTITY),
        ("What can you do?", ABILITIES),
        ("What is 7 + 5?", "7 + 5 = 12"),
        ("Count from 3 to 8.", "3, 4, 5, 6, 7, 8"),
        ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
        ("Say this is a test", "this is a test"),
    ],
)
def test_answers_that_examples_rely_on(model, question, answer):
    assert model.answers([Chat([user(question)])]) == [answer]


@pytest.mark.parametrize(
    ("temperature", "names"), [(0.0, NAMES_OF_PROPERTIES), (1.0, UNSEEN_PROPERTIES)], ids=["greedy", "drawn"]
)
async def test_structured_answers_end_by_themselves(temperature, names):
    assert await share_that_ends(WEIGHTS, 60, temperature=temperature, seed=2, names=names) >= 0.9


def test_a_story_is_long_enough_to_stream(model):
    (story,) = model.answers([Chat([user("Tell me a story.")])])
    assert story.startswith("Once upon a time")
    assert story.endswith("The end.")
    assert 60 <= len(model.tokenizer.encode(story)) <= 80


def test_a_raw_prompt_is_continued(model):
    (text,) = model.answers(["My name is Olivier and I"])
    assert text.startswith(" live in ")


def test_the_folder_holds_at_most_ten_megabytes():
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) <= 10_000_000


def test_weights_are_stored_in_bfloat16():
    header = WEIGHTS.joinpath("model.safetensors").read_bytes()
    length = int.from_bytes(header[:8], "little")
    tensors = json.loads(header[8 : 8 + length])
    tensors.pop("__metadata__", None)
    assert {tensor["dtype"] for tensor in tensors.values()} == {"BF16"}


def test_bfloat16_computes_the_same_answers_nearly_always(model):
    questions = draw_questions("one shape", seed=3, samples=50)
    assert accuracy(DemoModel(WEIGHTS, torch.bfloat16), questions) >= 0.94


def test_every_auto_class_finds_its_file():
    assert AutoConfig.from_pretrained(WEIGHTS).model_type == "llava"
    assert type(AutoProcessor.from_pretrained(WEIGHTS)).__name__ == "LlavaProcessor"
