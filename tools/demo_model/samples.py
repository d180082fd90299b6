"""The training mix: which kinds of sample are drawn, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tools.demo_model.chats import Chat, Completion
from tools.demo_model.picture_chats import picture_chat
from tools.demo_model.talk import completion, memory_chat, text_chat
from tools.demo_model.tool_chats import tool_chat

_COMPLETIONS = 0.12  # of the text samples
_MEMORY = 0.06


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of one cycle of the chat stage."""

    copying: float
    """Batches of random tokens repeated; without them the copy circuit is lost at a high rate."""

    pictures: float
    """Of the other batches, those about pictures; the rest is text only."""

    tools: float
    """Of the text samples, those with tools: what is learnt last."""


BROAD = Mix(copying=0.15, pictures=0.42, tools=0.25)
TOOL_HEAVY = Mix(copying=0.05, pictures=0.22, tools=0.42)


def text_sample(rng: Random, mix: Mix) -> Chat | Completion:
    """Draws a sample without pictures."""
    makers = (completion, tool_chat, memory_chat, text_chat)
    talk = 1 - _COMPLETIONS - mix.tools - _MEMORY
    return rng.choices(makers, (_COMPLETIONS, mix.tools, _MEMORY, talk))[0](rng)


def picture_sample(rng: Random) -> Chat:
    """Draws a chat about one or two pictures."""
    return picture_chat(rng)
