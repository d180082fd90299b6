"""Grammar masks on scores: which mask a row has, and its application to all rows of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import cache

import torch
from torch import Tensor

from backends.native.engine.devices import constant, to_device
from backends.native.engine.sampling.grammar_masks import WORD, Constraint
from backends.native.engine.sampling.rows import DraftRow, Row

_NEVER = float("-inf")


def mask_of(row: Row) -> Tensor:
    """[words] int32, the mask of a row with a grammar."""
    constraint = row.constraint
    assert isinstance(constraint, Constraint)
    if not isinstance(row, DraftRow):
        return constraint.words
    assert constraint.drafts is not None, "drafts under a grammar come from it"
    return constraint.drafts.words[len(row.drafts) - 1]


def mask_scores(scores: Tensor, rows: Seq[int], masks: Seq[Tensor]) -> None:
    """Set the scores of tokens that a grammar does not allow next to -inf, in place.

    Args:
        scores: [all rows, vocabulary].
        rows: the rows that have a grammar.
        masks: `Constraint.words` of each of these rows, [words] int32.
    """
    if not rows:
        return
    # Packed words go to the device and are unpacked there: an eighth of the bytes of a boolean mask.
    words = to_device(torch.stack(list(masks)), scores.device)
    allowed = words.unsqueeze(-1) & _bits(scores.device)
    # Compared with 0 and not by sign: bit 31 makes an int32 negative. The last word may have bits beyond the
    # vocabulary, which are cut off.
    forbidden = (allowed == 0).flatten(1)[:, : scores.shape[1]]
    index = constant(scores.device, "q", tuple(rows))
    scores.index_copy_(0, index, scores.index_select(0, index).masked_fill_(forbidden, _NEVER))


@cache
def _bits(device: torch.device) -> Tensor:
    """[32] int32, one bit set in each: the single bits of a word."""
    return torch.tensor(1).bitwise_left_shift(torch.arange(WORD)).to(torch.int32).to(device)
