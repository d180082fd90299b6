"""The training data: deterministic for a seed, true, and shaped as the model expects it."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from backends.native.demo import WEIGHTS
from tools.demo_model.batches import IGNORED, copying_batch, label, to_pixels, training_batches
from tools.demo_model.masks import AnswerMasks
from tools.demo_model.model import GRID, IMAGE_TOKENS
from tools.demo_model.samples.chats import Chat, Completion, assistant, user
from tools.demo_model.samples.image_chats import describe, image_chat
from tools.demo_model.samples.mix import FILLING
from tools.demo_model.samples.questions import QUESTIONNAIRE, question_of
from tools.demo_model.samples.scenes import Scene, Shape, draw_scene, patch_classes, render
from tools.demo_model.samples.talk import TASKS
from tools.demo_model.samples.tool_chats import tool_chat
from tools.demo_model.tokenizer import CALL_TOKENS, END, IMAGE, SPECIAL_TOKENS, train_tokenizer

pytestmark = pytest.mark.torch

RED_SQUARE = Shape("red", "square", 0.25, 0.5, 0.2)
ORANGE_STAR = Shape("orange", "star", 0.75, 0.5, 0.2)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(WEIGHTS)


@pytest.fixture(scope="module")
def masks(tokenizer):
    return AnswerMasks(tokenizer)


def test_the_same_seed_draws_the_same_batches(tokenizer):
    def draw(seed: int) -> list[torch.Tensor]:
        batches = itertools.islice(training_batches(tokenizer, Random(seed), FILLING, 4), 20)
        parts = [part for batch in batches for part in (batch.ids, batch.labels, batch.pixels, batch.allowed)]
        return [part for part in parts if part is not None]

    first, again, other = draw(1), draw(1), draw(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, other, strict=False))


def test_the_same_seed_trains_the_same_tokenizer():
    first, again = (train_tokenizer(seed=3, samples=300).backend_tokenizer.to_str() for _ in range(2))
    assert first == again


@pytest.mark.parametrize(
    ("shapes", "answer"),
    [
        ((), "Only an orange background."),
        ((RED_SQUARE,), "A red square."),
        ((RED_SQUARE, ORANGE_STAR), "A red square and an orange star."),
        ((ORANGE_STAR, RED_SQUARE, ORANGE_STAR), "An orange star, a red square and an orange star."),
    ],
)
def test_describe(shapes, answer):
    assert describe(Scene(shapes, "orange", 1.0)) == answer


def test_patch_classes_say_what_is_drawn_where():
    classes = patch_classes(Scene((RED_SQUARE,), "white", 1.0), GRID).reshape(GRID, GRID, 3)
    covered = np.zeros((GRID, GRID), bool)
    covered[2:4, 0:3] = True  # x from 0.08 to 0.42 and y from 0.33 to 0.67, in sixths
    assert (classes[..., 0] == np.where(covered, 1, 0)).all()
    assert (classes[..., 1] == np.where(covered, 2, 0)).all()
    assert (classes[..., 2] == 7).all()


def test_shapes_stand_inside_the_picture_from_left_to_right():
    for seed in range(300):
        shapes = draw_scene(Random(seed)).shapes
        assert [shape.x for shape in shapes] == sorted(shape.x for shape in shapes)
        assert all(shape.radius < shape.x < 1 - shape.radius for shape in shapes)
        assert len({(shape.color, shape.form) for shape in shapes}) == len(shapes)


def test_pixels_are_those_of_the_image_processor():
    image = render(draw_scene(Random(1)), Random(2), 48, 48)
    processor = AutoImageProcessor.from_pretrained(WEIGHTS, backend="pil")
    torch.testing.assert_close(to_pixels([image]), processor([image], return_tensors="pt")["pixel_values"])


def test_labels_cover_the_answers_and_their_end_only(tokenizer, masks):
    chat = Chat([user("What is 1 + 1?"), assistant("1 + 1 = 2"), user("Hello"), assistant("Hi")])
    ids, labels, _ = label(tokenizer, chat, masks)
    assert tokenizer.decode(ids) == (
        "<|user|>What is 1 + 1?<|end|><|assistant|>1 + 1 = 2<|end|><|user|>Hello<|end|><|assistant|>Hi<|end|>"
    )
    assert tokenizer.decode([token for token in labels if token != IGNORED]) == "1 + 1 = 2<|end|>Hi<|end|>"
    assert all(token in (IGNORED, ids[i]) for i, token in enumerate(labels))


def test_a_completion_learns_its_continuation_and_the_end(tokenizer, masks):
    ids, labels, _ = label(tokenizer, Completion("The capital of France is", " Paris."), masks)
    assert tokenizer.decode(ids) == "The capital of France is Paris.<|end|>"
    assert tokenizer.decode([token for token in labels if token != IGNORED]) == " Paris.<|end|>"


def test_a_copying_batch_learns_the_second_of_two_equal_runs():
    batch = copying_batch(torch.Generator().manual_seed(1), 5)
    learnt = batch.labels[0] != IGNORED
    length = int(learnt.sum()) + 1
    assert torch.equal(batch.ids[:, -length:][:, 1:], batch.labels[:, learnt])
    first = batch.ids.shape[1] - 2 * length
    starts = [
        start for start in range(first + 1) if torch.equal(batch.ids[:, start : start + length], batch.ids[:, -length:])
    ]
    assert len(starts) == 1


def test_each_picture_takes_its_image_tokens(tokenizer, masks):
    for seed in range(30):
        chat = image_chat(Random(seed))
        ids, *_ = label(tokenizer, chat, masks)
        assert ids.count(IMAGE) == len(chat.images) * IMAGE_TOKENS


def test_calls_name_an_offered_tool_and_its_parameters():
    for seed in range(300):
        chat = tool_chat(Random(seed))
        offered = {
            tool["function"]["name"]: set(tool["function"]["parameters"]["properties"]) for tool in chat.tools or ()
        }
        for message in chat.messages:
            for call in message.get("tool_calls", ()):
                assert set(call["function"]["arguments"]) <= offered[call["function"]["name"]]


def test_sums_are_right():
    for seed in range(200):
        _, answer = TASKS["sum"][1](Random(seed))
        left, right = answer.split(" = ")
        assert sum(map(int, left.split(" + "))) == int(right)


def test_every_task_draws_questions_that_end_before_the_answer():
    for task, draw in QUESTIONNAIRE.items():
        question = draw(Random(0))
        assert question.answer, task
        if isinstance(question.prompt, Chat):
            assert question.prompt.messages[-1]["role"] in ("user", "tool"), task


def test_asking_a_chat_cuts_at_its_first_call():
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]
    chat = Chat([user("Add 1 and 2."), {"role": "assistant", "content": None, "tool_calls": calls}, assistant("3")])
    question = question_of(chat)
    assert question.prompt == Chat([user("Add 1 and 2.")], None, ())
    assert question.answer == '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


def test_special_tokens_have_their_numbers_and_call_tokens_are_not_special(tokenizer):
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))
    assert tokenizer.eos_token_id == END
    calls = tokenizer.encode("".join(CALL_TOKENS))
    assert len(calls) == 2
    assert tokenizer.decode(calls, skip_special_tokens=True) == "<tool_call></tool_call>"


@pytest.mark.parametrize("text", ["Grüße, 你好 🙂\n\t", "12 + 345", "  two  spaces ", '{"a": [1, 2]}'])
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text
