"""The recorded streams by name, and the protocol that each is of."""

from __future__ import annotations

from pathlib import Path

_FILES = sorted((Path(__file__).parent / "streams").iterdir())

ALL = {file.stem: file.read_bytes() for file in _FILES}
"""Name -> the bytes of the body. The provider's name comes first."""

FAILED = ("groq-error",)
"""Streams that end in an error."""

RAW = ("tgi-generate", "ollama-generate")
"""Streams of answers to a text, not to a chat."""

WHOLE = {name: data for name, data in ALL.items() if name not in FAILED}
"""The streams that end as they should."""


def protocol(name: str) -> str:
    """The adapter and dialect of a stream. Most providers speak like OpenAI, and TGI does in its chats."""
    if name == "tgi-generate":
        return "tgi"
    provider = name.partition("-")[0]
    return provider if provider in ("anthropic", "gemini", "ollama") else "openai"


def choices(name: str) -> int:
    """How many answers were asked for."""
    return 2 if name == "openai-two-choices" else 1
