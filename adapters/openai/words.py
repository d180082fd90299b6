"""Fields whose values are words, and words that are not known here.

A server of the client's dialect may be newer than this table, so that it gets the word, and refuses it itself. Whoever
else answers could only ignore it: then it is refused as OpenAI refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable

from adapters.openai.inbound.checks import not_one_of
from schemas.origin import Unread

TOOL_CHOICES = ("none", "auto", "required")
"""The words of `tool_choice`."""
FORMATS = ("text", "json_object", "json_schema")
"""The types of `response_format` that OpenAI has."""
WORDS = {
    "reasoning_effort": ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "verbosity": ("low", "medium", "high"),
    "service_tier": ("auto", "default", "flex", "scale", "priority", "fast"),
    "prompt_cache_retention": ("in_memory", "in-memory", "24h"),
    "modalities": ("text", "audio"),
}
"""A field -> its words (openai/openai-openapi:openapi.yaml)."""


def unknown_words(given: Iterable[tuple[str, str, str | None]]) -> tuple[Unread, ...]:
    """The words that are not known, of fields as (place, name, word)."""
    return tuple(
        unknown_word(place, name, word, WORDS[name])
        for place, name, word in given
        if word is not None and word not in WORDS[name]
    )


def unknown_word(place: str, name: str, word: str, known: tuple[str, ...]) -> Unread:
    """A word that is none of those `known`."""
    refusal = not_one_of(place, word, known)
    return Unread(place, name, refusal.message, refusal.code)
