"""The two forms of a training sample: chats and raw completions.

A :class:`Chat` is what a client would send: OpenAI-style messages and tools, rendered by the shipped chat
template in training and evaluation alike, so the model never sees a prompt that the gateway cannot make.
A :class:`Completion` is raw text without a template. All randomness comes from the given ``Random``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from PIL import Image

from schemas.ir import Generate
from tools.demo_model.vocabulary import SYSTEM_PROMPTS, WORDS

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages in OpenAI's form; image parts are ``{"type": "image"}``, one for each of ``images`` in order.

    With ``held``, the last message was written under the grammar that this request has.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    images: Sequence[Image.Image] = ()
    held: Generate | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A raw prompt and its continuation ``text``, which alone has labels."""

    prompt: str
    text: str


def user(content: str | list[dict[str, str]]) -> Message:
    """A user message."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """An assistant message."""
    return {"role": "assistant", "content": content}


def maybe_system(rng: Random, probability: float) -> list[Message]:
    """A system message with this probability, else nothing; one in five is random words, to be ignored."""
    if rng.random() >= probability:
        return []
    prompt = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.8 else f"{some_words(rng, 3, 8).capitalize()}."
    return [{"role": "system", "content": prompt}]


def some_words(rng: Random, least: int, most: int) -> str:
    """Between ``least`` and ``most`` random words, joined by spaces."""
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


def some_letters(rng: Random) -> str:
    """A made-up word of three to seven letters."""
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 7)))


def with_article(noun: str) -> str:
    """``an orange star``, ``a red star``."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
