"""What a token is chosen after: a sequence as it is, or with some of the drafts that a step verifies.

The choice after a draft is made as if the draft were a token of the sequence: bias, penalties, grammar, noise and the
ban of early ends are those of its position. So it is the choice that a later step would make.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

from backends.native.engine.scheduling.sequence import GrammarConstraint, Work
from backends.native.protocol.messages import Submit


class Row(Protocol):
    """What the stages of sampling read. A `Sequence` is a row."""

    @property
    def request(self) -> Submit:
        """The request that the token belongs to."""
        ...

    @property
    def tokens(self) -> list[int]:
        """The tokens that the chosen one follows, prompt included."""
        ...

    @property
    def generated(self) -> int:
        """How many of `tokens` were generated."""
        ...

    @property
    def constraint(self) -> GrammarConstraint | None:
        """The grammar, if there is one."""
        ...


class DraftRow:
    """A sequence with the first `count` drafts of a work. Implements `Row`."""

    def __init__(self, work: Work, count: int) -> None:
        self.sequence = work.sequence
        self.request = work.sequence.request
        self.constraint = work.sequence.constraint
        self.drafts = work.drafts[:count]

    @property
    def generated(self) -> int:
        """See `Row`."""
        return self.sequence.generated + len(self.drafts)

    @cached_property
    def tokens(self) -> list[int]:
        """See `Row`."""
        return [*self.sequence.tokens, *self.drafts]


def rows_of(work: Work) -> list[Row]:
    """The rows at which a work chooses tokens: its sequence, and one for each draft."""
    return [work.sequence, *(DraftRow(work, count) for count in range(1, len(work.drafts) + 1))]
