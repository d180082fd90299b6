"""The filter `redact`: replaces what matches one of its patterns, or refuses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import regex

from gateway.config import Section
from gateway.filters.base import Edit, Refused, Source

_TIMEOUT = 0.5
"""Seconds for one pattern over one text: a pattern may take exponential time."""


class RedactOptions(Section, frozen=True):
    """The patterns by name, and what becomes of a text that matches.

    Attributes:
        patterns: name -> regular expression. The name, in brackets, takes the place of what matches.
        sources: which texts are searched.
        action: "replace" or "refuse".
        window: the most characters that one match has.
    """

    patterns: Annotated[dict[str, str], msgspec.Meta(min_length=1)]
    sources: tuple[Source, ...] = ("request", "answer")
    action: Literal["replace", "refuse"] = "replace"
    window: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


class Redact:
    """See the module.

    Args:
        options: the configuration's.

    Raises:
        ValueError: a pattern is no regular expression.
    """

    Options = RedactOptions

    def __init__(self, options: RedactOptions) -> None:
        self.window = options.window
        self._options = options
        self._patterns = []
        for name, pattern in options.patterns.items():
            try:
                self._patterns.append((name, regex.compile(pattern)))
            except regex.error as error:
                raise ValueError(f"patterns.{name}: {error}") from None

    def edits(self, text: str, source: Source) -> list[Edit]:
        """A replacement for each match; of two that overlap, the first."""
        if source not in self._options.sources:
            return []
        found: list[Edit] = []
        for edit in sorted(self._matches(text), key=lambda each: (each.start, -each.stop)):
            if not found or edit.start >= found[-1].stop:
                found.append(edit)
        if found and self._options.action == "refuse":
            raise Refused(f"The {source} holds what may not pass: {found[0].text}.")
        return found

    def _matches(self, text: str) -> Iterator[Edit]:
        for name, pattern in self._patterns:
            for match in pattern.finditer(text, timeout=_TIMEOUT):
                if match.end() > match.start():
                    yield Edit(match.start(), match.end(), f"[{name}]")
