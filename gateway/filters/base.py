"""The interface of filters. A kind of filter is an entry point of the group `gateway.filters`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal, Protocol

import msgspec

Source = Literal["request", "answer"]
"""Where a text comes from."""


class Edit(msgspec.Struct, frozen=True):
    """A change of a text: what is from `start` up to `stop` becomes `text`. Places are in characters."""

    start: int
    stop: int
    text: str


class Refused(Exception):
    """A filter refuses a text; the message is for the client."""


class Filter(Protocol):
    """Looks at texts, in a thread. It may be called in several at once.

    Attributes:
        window: the most characters that one edit replaces. So many of a streamed answer are held back, and a text that
            crosses the borders of chunks is found like any other.
    """

    window: int

    def edits(self, text: str, source: Source) -> Iterable[Edit]:
        """The changes of a text: in order, and not over each other.

        Args:
            text: a whole text of a request, or a part of an answer with what came right before it.
            source: which of the two.

        Raises:
            Refused: the text may not pass. Any other exception is a failure of the filter.
        """
        ...


class MakesFilter(Protocol):
    """What an entry point names: `Options` are the fields of its section beside `kind`."""

    Options: Any

    def __call__(self, options: Any) -> Filter:
        """Make a filter."""
        ...


def apply(text: str, edits: Collection[Edit]) -> str:
    """The changed text."""
    parts, at = [], 0
    for edit in edits:
        parts += [text[at : edit.start], edit.text]
        at = edit.stop
    return "".join((*parts, text[at:]))
