"""The training mix: which kinds of sample are drawn, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tools.demo_model.samples.chats import Chat, Completion
from tools.demo_model.samples.image_chats import image_chat
from tools.demo_model.samples.schema_chats import schema_chat
from tools.demo_model.samples.talk import completion, memory_chat, text_chat
from tools.demo_model.samples.tool_chats import tool_chat

_COMPLETIONS = 0.12  # of the text samples
_MEMORY = 0.06


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of one cycle of the chat stage."""

    copying: float
    """Share of batches of repeated random tokens; without them a high learning rate destroys the copy circuit."""

    images: float
    """Share of the other batches that are about images; the rest is text only."""

    tools: float
    """Share of the text samples that have tools, the skill that is learned last."""

    schemas: float = 0.0
    """Share of the text samples whose answer fills in a schema."""


BROAD = Mix(copying=0.15, images=0.42, tools=0.25)
TOOL_HEAVY = Mix(copying=0.05, images=0.22, tools=0.42)
FILLING = Mix(copying=0.05, images=0.22, tools=0.3, schemas=0.2)


def text_sample(rng: Random, mix: Mix) -> Chat | Completion:
    """Draw a sample without images."""
    makers = (completion, tool_chat, memory_chat, text_chat, schema_chat)
    talk = 1 - _COMPLETIONS - mix.tools - _MEMORY - mix.schemas
    return rng.choices(makers, (_COMPLETIONS, mix.tools, _MEMORY, talk, mix.schemas))[0](rng)


def image_sample(rng: Random) -> Chat:
    """Draw a chat about one or two images."""
    return image_chat(rng)
