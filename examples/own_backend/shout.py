"""A backend of one's own, `kind = "shout"`: it answers with the last text of the prompt in capitals, word by word.

A backend turns a `Generate` into events. Everything else is the gateway's: clients of every protocol, streams, stops of
clients, experiments, metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from backends.base import Capabilities, Feature, Health
from schemas.errors import UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Delta,
    Embed,
    Embeddings,
    Events,
    Finished,
    FinishReason,
    Generate,
    Prompt,
    Started,
    TextPart,
    TextPrompt,
    Tokenize,
    Tokens,
    Usage,
)


class ShoutOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of its section in the configuration.

    Attributes:
        mark: written at the end of each answer.
        interval: seconds between two words.
    """

    mark: str = "!"
    interval: float = 0.0


class ShoutBackend:
    """What the entry point names: made with the section's name and its keys."""

    Options = ShoutOptions

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self._options = msgspec.convert(options, ShoutOptions)
        # What is not listed is refused before the backend is asked, in the client's own protocol.
        self.capabilities = Capabilities(features=frozenset({Feature.CHAT}), max_choices=1)

    async def start(self) -> None:
        """Connect, load, ...: here there is nothing to do."""

    async def aclose(self) -> None:
        """Undo `start`."""

    async def healthy(self) -> Health:
        """Asked four times a second: an answer that is known, not one that is looked for."""
        return Health("ready")

    async def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        """Yield `Started`, the words, `Finished` and `Usage`. If the client leaves, the generator is closed."""
        asked = _text(request.prompts[0]).split()
        limit = request.stopping.max_new_tokens
        words = asked if limit is None else asked[:limit]
        yield (Started(request.model, len(asked)),)
        for place, word in enumerate(words):
            await asyncio.sleep(self._options.interval)
            yield (Delta(text=(" " if place else "") + word.upper()),)
        whole = len(words) == len(asked)
        reason = FinishReason.EOS if whole else FinishReason.LENGTH
        mark = self._options.mark if whole else ""
        yield (Finished(text=mark, reason=reason, generated=len(words)), Usage(len(asked), len(words)))

    async def embed(self, request: Embed) -> Embeddings:
        """Never called: the capabilities do not claim embeddings."""
        raise UnsupportedFeature("There are no embeddings.", feature="embeddings")

    async def tokenize(self, request: Tokenize) -> Tokens:
        """Never called, likewise."""
        raise UnsupportedFeature("There are no tokens.", feature="tokenize")


def _text(prompt: Prompt) -> str:
    """The text of a prompt; of a conversation, of its last message."""
    if isinstance(prompt, TextPrompt):
        return prompt.text
    assert isinstance(prompt, ChatPrompt)
    content = prompt.messages[-1].content or ""
    return content if isinstance(content, str) else "".join(part.text for part in content if isinstance(part, TextPart))
