"""Thoughts in the form of Google's OpenAI API: text of the content, in `<thought>` tags and flagged beside it.

Source: Google's page on the OpenAI form of Gemini, and what its server sends: `extra_content.google.thought` is true in
each chunk of thoughts, the first of which opens the tag; the first chunk of the answer closes it.
"""

from __future__ import annotations

from typing import Any, Literal

_OPEN, _CLOSE = "<thought>", "</thought>"


def google_content(extra_content: Any) -> dict[str, Any]:
    """What Google adds to a message or a call: the member `google` of the field, which others may use otherwise."""
    google = extra_content.get("google") if isinstance(extra_content, dict) else None
    return google if isinstance(google, dict) else {}


def has_thought(extra_content: Any) -> bool:
    """Whether a message or a piece of it is flagged as thoughts."""
    return google_content(extra_content).get("thought") is True


class ThoughtReader:
    """Tells the thoughts of one choice from its text. A tag without the flag is text: a model may write it."""

    __slots__ = ("_held", "_state")

    def __init__(self) -> None:
        self._state: Literal["text", "opening", "tagged", "flagged"] = "text"
        self._held = ""

    def feed(self, text: str, *, flagged: bool) -> tuple[str, str]:
        """The text and the thoughts of a piece of content. What may be part of a tag is held back."""
        if flagged and self._state == "text":
            self._state = "opening"
        text, self._held = self._held + text, ""
        if self._state == "opening":
            if text.startswith(_OPEN):
                self._state, text = "tagged", text.removeprefix(_OPEN)
            elif _OPEN.startswith(text):
                self._held = text
                return "", ""
            else:
                self._state = "flagged"
        if self._state == "tagged":
            return self._until_closed(text)
        if self._state == "flagged" and flagged:
            return "", text
        self._state = "text"
        return text, ""

    def close(self) -> str:
        """The thoughts that were held back, at the end of the choice."""
        held, self._held = self._held, ""
        return held

    def _until_closed(self, text: str) -> tuple[str, str]:
        thought, closed, rest = text.partition(_CLOSE)
        if closed:
            self._state = "text"
            return rest, thought
        size = next(size for size in range(min(len(_CLOSE) - 1, len(text)), -1, -1) if text.endswith(_CLOSE[:size]))
        self._held = text[len(text) - size :]
        return "", text[: len(text) - size]
