"""Where a picture's placeholder tokens go in a prompt. Token ids only: text that merely looks like a placeholder was
made plain text by the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptUpdateDetails:
    """The tokens that stand for one item, and which of them its embeddings replace."""

    full: tuple[int, ...]
    is_embed: tuple[bool, ...]

    @classmethod
    def from_seq(cls, ids: Sequence[int]) -> PromptUpdateDetails:
        """All of them."""
        return cls(tuple(ids), (True,) * len(ids))

    @classmethod
    def select_token_id(cls, ids: Sequence[int], embed_token_id: int) -> PromptUpdateDetails:
        """Those that are `embed_token_id`; the others are ordinary tokens (line breaks and the like)."""
        return cls(tuple(ids), tuple(id == embed_token_id for id in ids))


Content = Callable[[int], PromptUpdateDetails | Sequence[int]]
"""The tokens of the i-th item."""


@dataclass(frozen=True, slots=True)
class PromptReplacement:
    """Each item takes the place of the next occurrence of `target`."""

    modality: str
    target: tuple[int, ...]
    replacement: Content


@dataclass(frozen=True, slots=True)
class PromptInsertion:
    """All items, in order, come after the first occurrence of `target`; an empty one is the prompt's start."""

    modality: str
    target: tuple[int, ...]
    insertion: Content


PromptUpdate = PromptReplacement | PromptInsertion


class NoPlace(Exception):
    """The prompt has not the places for all items."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An item's tokens and where they begin in the updated prompt."""

    offset: int
    details: PromptUpdateDetails


def apply_update(ids: Sequence[int], update: PromptUpdate, count: int) -> tuple[list[int], list[Placed]]:
    """The prompt with `count` items in it. Occurrences of a target beyond those stay what they are.

    Raises:
        NoPlace: the target occurs too seldom.
    """
    if isinstance(update, PromptInsertion):
        at = _find(ids, update.target, 0) if update.target else 0
        if at is None:
            raise NoPlace
        places = [(at + len(update.target), at + len(update.target))] * count
        return _put(ids, places, update.insertion)
    places, start = [], 0
    for _ in range(count):
        at = _find(ids, update.target, start)
        if at is None:
            raise NoPlace
        start = at + len(update.target)
        places.append((at, start))
    return _put(ids, places, update.replacement)


def _put(ids: Sequence[int], places: Sequence[tuple[int, int]], content: Content) -> tuple[list[int], list[Placed]]:
    """Put the i-th content over the i-th half-open range of `ids`."""
    updated: list[int] = []
    placed: list[Placed] = []
    copied = 0
    for index, (start, stop) in enumerate(places):
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
    return next((at for at in range(start, last + 1) if list(ids[at : at + len(wanted)]) == wanted), None)
