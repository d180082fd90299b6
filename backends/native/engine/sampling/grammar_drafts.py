"""Drafts under a grammar: the tokens that it leaves no choice but to write, or those of a proposal that it allows.

After a key's first character, say, a JSON schema leaves one way to go on until its value begins. These tokens are run
in one step instead of one each (jump-forward decoding). They are drafts like others: a token is chosen at each of them,
by a mask that allows one token, so nothing depends on llguidance's promise that they are right.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from llguidance import LLMatcher
from torch import Tensor

_MAX_SECONDS = 0.0005
"""CPU time for the masks of drafts; the drafts whose masks would take longer are left out."""


class GrammarDrafts(NamedTuple):
    """Drafts, and the masks behind them.

    Attributes:
        tokens: the drafts.
        forced: whether the grammar allows no others.
        words: [drafts, words] int32, the mask for what may follow each of them.
    """

    tokens: tuple[int, ...]
    forced: bool
    words: Tensor


def follow_drafts(matcher: LLMatcher, proposed: Seq[int], most: int, words: int) -> GrammarDrafts | None:
    """Find drafts behind what `matcher` has consumed; its position stays, unless it runs into an error.

    Args:
        matcher: a grammar in some position.
        proposed: drafts in case that the grammar leaves a choice.
        most: the most drafts.
        words: 32-bit words of a mask.

    Returns:
        None if there are none.
    """
    forced = matcher.compute_ff_tokens()[:most]
    drafts = forced or list(proposed[: min(most, matcher.validate_tokens(list(proposed)))])
    if not drafts:
        return None
    masks = torch.empty(len(drafts), words, dtype=torch.int32)
    end = time.thread_time() + _MAX_SECONDS
    count = 0
    for draft, mask in zip(drafts, masks, strict=True):
        if time.thread_time() > end or not matcher.consume_token(draft):
            break
        matcher.unsafe_compute_mask_ptr(mask.data_ptr(), mask.nbytes)
        count += 1
    matcher.rollback(count)
    return GrammarDrafts(tuple(drafts[:count]), bool(forced), masks) if count else None
