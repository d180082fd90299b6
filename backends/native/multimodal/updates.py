"""Prompt updates: where an image's placeholder tokens go. On token ids only: the tokenizer has made plain text of text
that merely looks like a placeholder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptUpdateDetails:
    """The tokens that represent one item, and which of them its embeddings replace."""

    full: tuple[int, ...]
    is_embed: tuple[bool, ...]

    @classmethod
    def from_seq(cls, ids: Sequence[int]) -> PromptUpdateDetails:
        """All tokens are replaced."""
        return cls(tuple(ids), (True,) * len(ids))

    @classmethod
    def select_token_id(cls, ids: Sequence[int], embed_token_id: int) -> PromptUpdateDetails:
        """Only `embed_token_id` is replaced; other tokens are ordinary ones (line breaks and the like)."""
        return cls(tuple(ids), tuple(id == embed_token_id for id in ids))


Content = Callable[[int], PromptUpdateDetails | Sequence[int]]
"""The tokens of the i-th item."""


@dataclass(frozen=True, slots=True)
class PromptReplacement:
    """Each item replaces the next occurrence of `target`."""

    modality: str
    target: tuple[int, ...]
    replacement: Content


@dataclass(frozen=True, slots=True)
class PromptInsertion:
    """All items are inserted after the first occurrence of `target`; an empty target is the prompt's start."""

    modality: str
    target: tuple[int, ...]
    insertion: Content


PromptUpdate = PromptReplacement | PromptInsertion


class PlaceholderMissing(Exception):
    """The prompt has fewer placeholders than items."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An item's tokens, and their offset in the updated prompt."""

    offset: int
    details: PromptUpdateDetails


def apply_update(ids: Sequence[int], update: PromptUpdate, count: int) -> tuple[list[int], list[Placed]]:
    """Put `count` items into a prompt. Further occurrences of the target stay as they are.

    Raises:
        PlaceholderMissing: the target occurs less often.
    """
    if isinstance(update, PromptInsertion):
        at = _find(ids, update.target, 0) if update.target else 0
        if at is None:
            raise PlaceholderMissing
        # Empty ranges at one place: the items are inserted there in order, and nothing is replaced.
        places = [(at + len(update.target), at + len(update.target))] * count
        return _splice(ids, places, update.insertion)
    places, start = [], 0
    for _ in range(count):
        at = _find(ids, update.target, start)
        if at is None:
            raise PlaceholderMissing
        # The next search begins behind this occurrence, so occurrences cannot overlap.
        start = at + len(update.target)
        places.append((at, start))
    return _splice(ids, places, update.replacement)


def _splice(ids: Sequence[int], places: Sequence[tuple[int, int]], content: Content) -> tuple[list[int], list[Placed]]:
    """Replace the i-th half-open range of `ids` by the i-th content."""
    updated: list[int] = []
    placed: list[Placed] = []
    copied = 0
    for index, (start, stop) in enumerate(places):
        # `ids` is read once from left to right; offsets are those in the updated prompt, which the engine sees.
        updated += ids[copied:start]
        copied = stop
        found = content(index)
        details = found if isinstance(found, PromptUpdateDetails) else PromptUpdateDetails.from_seq(found)
        placed.append(Placed(len(updated), details))
        updated += details.full
    return [*updated, *ids[copied:]], placed


def _find(ids: Sequence[int], target: Sequence[int], start: int) -> int | None:
    wanted = list(target)
    last = len(ids) - len(wanted)
    # A plain search: targets have few tokens.
    return next((at for at in range(start, last + 1) if list(ids[at : at + len(wanted)]) == wanted), None)
