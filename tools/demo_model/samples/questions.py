"""Fresh questions with known answers: what the evaluation measures, task by task.

They come from the training generators, under a seed that no training stage uses, or are made of what
training never shows (other cities, other image sizes). Stories are left out: they have no single answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from PIL import Image

from tools.demo_model.samples.chats import Chat, Message, user
from tools.demo_model.samples.image_chats import IMAGE_SIZE, QUESTIONS, ask_what, image_message
from tools.demo_model.samples.scenes import Scene, draw_scene, render
from tools.demo_model.samples.talk import TASKS, QuestionAnswer, memory_chat
from tools.demo_model.samples.tool_chats import (
    parallel_calls_chat,
    tool_answer_chat,
    tool_call_chat,
    unseen_city_chat,
    unused_tools_chat,
)
from tools.demo_model.vocabulary import CAPITALS, UNSEEN_CITIES


@dataclass(frozen=True, slots=True)
class Question:
    """A chat up to the assistant's turn, or a raw prompt, and the one right answer."""

    prompt: Chat | str
    answer: str


def question_of(chat: Chat) -> Question:
    """Cut a chat before its first call, or else its last message, which is the answer."""
    calls = [i for i, message in enumerate(chat.messages) if "tool_calls" in message]
    return _cut(chat, calls[0] if calls else len(chat.messages) - 1)


def _question_after_result(rng: Random) -> Question:
    chat = tool_answer_chat(rng)
    return _cut(chat, len(chat.messages) - 1)


def _cut(chat: Chat, end: int) -> Question:
    return Question(Chat(chat.messages[:end], chat.tools, chat.images), _rendered(chat.messages[end]))


def _rendered(message: Message) -> str:
    """An assistant message as the chat template writes it."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return (message["content"] or "") + "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


def _without_need(rng: Random) -> Question:
    """A question that needs none of its tools; stories are skipped, since they have no single answer."""
    question = question_of(unused_tools_chat(rng))
    while question.answer.startswith("Once upon a time"):
        question = question_of(unused_tools_chat(rng))
    return question


def _raw_capital(rng: Random) -> Question:
    country = rng.choice(list(CAPITALS))
    return Question(f"The capital of {country} is", f" {CAPITALS[country]}.")


def _text(draw: Callable[[Random], QuestionAnswer]) -> Callable[[Random], Question]:
    def question(rng: Random) -> Question:
        text, answer = draw(rng)
        return Question(Chat([user(text)]), answer)

    return question


def _image(
    ask: Callable[[Random, Scene], QuestionAnswer | None],
    counts: Sequence[int] = (1, 2, 3),
    size: tuple[int, int] = (IMAGE_SIZE, IMAGE_SIZE),
) -> Callable[[Random], Question]:
    """A question about a new image of as many shapes as one of ``counts``, ``size`` pixels wide and high."""

    def question(rng: Random) -> Question:
        exchange = None
        while exchange is None:  # a scene of two circles has no answer to "What color is the circle?"
            scene = draw_scene(rng, rng.choice(counts))
            exchange = ask(rng, scene)
        image: Image.Image = render(scene, rng, *size)
        return Question(Chat([image_message(rng, exchange[0])], images=(image,)), exchange[1])

    return question


QUESTIONNAIRE: dict[str, Callable[[Random], Question]] = {
    "one shape": _image(ask_what, (1,)),
    "one shape, 320 x 240 picture": _image(ask_what, (1,), (320, 240)),
    "two shapes": _image(ask_what, (2,)),
    "three shapes": _image(ask_what, (3,)),
    "no shape": _image(ask_what, (0,)),
    **{name: _image(ask) for name, (_, ask) in QUESTIONS.items() if name != "describe"},
    **{name: _text(draw) for name, (_, draw) in TASKS.items() if name != "story"},
    "remembers the name": lambda rng: question_of(memory_chat(rng)),
    "tool call": lambda rng: question_of(tool_call_chat(rng)),
    "tool call, unseen city": lambda rng: question_of(unseen_city_chat(rng, UNSEEN_CITIES)),
    "two tool calls": lambda rng: question_of(parallel_calls_chat(rng)),
    "answer from tool result": _question_after_result,
    "tools given, none needed": _without_need,
    "raw: the capital of … is": _raw_capital,
}
"""Task name -> a function that draws one question of it."""
