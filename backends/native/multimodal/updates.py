"""Prompt updates: where an item's placeholder tokens go. On token ids only: the tokenizer has made plain text of text
that merely looks like a placeholder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
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


Tokens = Sequence[int] | str
"""Token ids, or a text that the tokenizer encodes without special tokens."""
Content = PromptUpdateDetails | Tokens
ContentOf = Callable[[int], Content] | Content
"""The tokens of each item, or a function from the item's index to them."""
Encode = Callable[[str], Sequence[int]]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PromptUpdate(ABC):
    """Where the tokens of a modality's items go. `target`: the tokens that mark the place."""

    modality: str
    target: Tokens

    @property
    @abstractmethod
    def content(self) -> ContentOf:
        """The tokens of each item."""

    @abstractmethod
    def find(self, ids: Sequence[int], target: Sequence[int], start: int) -> Span | None:
        """The half-open range of `ids` that the next item replaces, at `start` or later; None if there is none."""


@dataclass(frozen=True, slots=True)
class PromptReplacement(PromptUpdate):
    """Each item replaces the next occurrence of `target`."""

    replacement: ContentOf

    @property
    def content(self) -> ContentOf:
        """The replacement."""
        return self.replacement

    def find(self, ids: Sequence[int], target: Sequence[int], start: int) -> Span | None:
        """The next occurrence."""
        at = _find(ids, target, start)
        return None if at is None else (at, at + len(target))


@dataclass(frozen=True, slots=True)
class PromptInsertion(PromptUpdate):
    """All items are inserted after the first occurrence of `target`; an empty target is the prompt's start."""

    insertion: ContentOf

    @property
    def content(self) -> ContentOf:
        """The insertion."""
        return self.insertion

    def find(self, ids: Sequence[int], target: Sequence[int], start: int) -> Span | None:
        """An empty range behind the first occurrence, for every item."""
        at = _find(ids, target, 0) if target else 0
        if at is None or at + len(target) < start:
            return None
        return at + len(target), at + len(target)


class PlaceholderMissing(Exception):
    """The prompt has fewer placeholders than items."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An item's tokens, and their offset in the updated prompt."""

    modality: str
    offset: int
    details: PromptUpdateDetails


def apply_updates(
    ids: Sequence[int], updates: Sequence[PromptUpdate], counts: Mapping[str, int], encode: Encode
) -> tuple[list[int], list[Placed]]:
    """Put items into a prompt. Several updates of one modality are alternatives: the one that matches first is taken.

    Args:
        ids: of the prompt. Occurrences of a target behind the last item stay as they are.
        updates: where items go.
        counts: number of items by modality.
        encode: encodes the texts among targets and contents.

    Returns:
        The updated prompt, and the items in the order of the prompt; those of one modality keep their order.

    Raises:
        PlaceholderMissing: a target occurs less often.
    """
    found = [each for modality, count in counts.items() for each in _places(ids, updates, modality, count, encode)]
    # Stable: items that are inserted at one place keep their order.
    found.sort(key=lambda place: place[0])
    updated: list[int] = []
    placed: list[Placed] = []
    copied = 0
    for (start, stop), update, index in found:
        # `ids` is read once from left to right; offsets are those in the updated prompt, which the engine sees.
        updated += ids[copied:start]
        copied = stop
        details = _details(update.content, index, encode)
        placed.append(Placed(update.modality, len(updated), details))
        updated += details.full
    return [*updated, *ids[copied:]], placed


def _places(
    ids: Sequence[int], updates: Sequence[PromptUpdate], modality: str, count: int, encode: Encode
) -> Iterator[tuple[Span, PromptUpdate, int]]:
    """Where each item of a modality goes, and by which update."""
    targets = [(update, _encoded(update.target, encode)) for update in updates if update.modality == modality]
    start = 0
    for index in range(count):
        spans = [(update.find(ids, target, start), update) for update, target in targets]
        matches = [(span, update) for span, update in spans if span is not None]
        if not matches:
            raise PlaceholderMissing
        span, update = min(matches, key=lambda match: match[0])
        # The next search begins behind this occurrence, so occurrences cannot overlap.
        start = span[1]
        yield span, update, index


def _details(content: ContentOf, index: int, encode: Encode) -> PromptUpdateDetails:
    found = content(index) if callable(content) else content
    return found if isinstance(found, PromptUpdateDetails) else PromptUpdateDetails.from_seq(_encoded(found, encode))


def _encoded(tokens: Tokens, encode: Encode) -> Sequence[int]:
    return encode(tokens) if isinstance(tokens, str) else tokens


def _find(ids: Sequence[int], target: Sequence[int], start: int) -> int | None:
    wanted = list(target)
    last = len(ids) - len(wanted)
    # A plain search: targets have few tokens.
    return next((at for at in range(start, last + 1) if list(ids[at : at + len(wanted)]) == wanted), None)
