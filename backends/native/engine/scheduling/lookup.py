"""Draft tokens by lookup: what followed the last tokens of a text where they occurred in it before.

Strategy: the match finder of LZ77 compressors. A hash table has the latest place of each pair of tokens, and a chain
leads from each place to the one before it. Of the first few places in the chain, the one after which the longest
suffix of the text ends is the match, and the tokens behind it are the drafts. Short matches are prompt lookup (n-gram
drafts), long ones suffix decoding (arXiv 2411.04975). A sequence finds drafts in its own prompt and output only: drafts
from other clients' texts would show in the timing that they were there.

An edit inserts, replaces or leaves out tokens and then goes on with the text that it copies. Until two tokens match
again, one is enough near the place where the copying stopped (realignment). Imports no torch.
"""

from __future__ import annotations

from array import array

LONGEST_MATCH = 16
"""Tokens that are compared at most: a longer match says no more."""
REALIGNED = 1
"""The length of a match that was found near the place where the one before it stopped."""
_CANDIDATES = 8  # places of a pair that are compared
_NEAR = 16  # tokens of what is copied, and of the text, within which a single one is enough
_SHIFT = 32  # a pair of tokens as one integer


class Lookup:
    """Finds drafts for one growing list of tokens. A call costs a few microseconds beside the tokens that are new."""

    __slots__ = ("_earlier", "_followed", "_latest", "_lost", "_source")

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}  # a pair: where its second token stands last
        self._earlier = array("q", (-1,))  # for each token: where its pair stood before, or -1
        self._source = -1  # where the text that is copied goes on, or has stopped being copied; -1: nowhere
        self._followed = 0  # tokens of the text that were compared with it
        self._lost = 0  # of these, how many there are since it stopped

    def find(self, tokens: list[int], most: int) -> tuple[list[int], int]:
        """Find up to `most` drafts of what follows `tokens`, which only grow from call to call.

        Returns:
            The drafts, and how many tokens before them were matched; both empty if nothing was.
        """
        end = len(tokens) - 1
        if end < 1:
            return [], 0
        # All pairs but the last, which would find itself.
        for place in range(len(self._earlier), end):
            pair = tokens[place - 1] << _SHIFT | tokens[place]
            self._earlier.append(self._latest.get(pair, -1))
            self._latest[pair] = place
        best, longest = self._best(tokens, end)
        if longest:
            self._source, self._lost = best + 1, 0
        else:
            best, longest = self._realigned(tokens, end)
        self._followed = len(tokens)
        if not longest:
            return [], 0
        drafts = tokens[best + 1 : best + 1 + most]
        # The match may reach into the text's end: the text then repeats itself, and the drafts go on repeating it.
        period = end - best
        while len(drafts) < most:
            drafts.append(drafts[len(drafts) - period])
        return drafts, longest

    def _realigned(self, tokens: list[int], end: int) -> tuple[int, int]:
        """The place near the end of the former match that has the last token, and the length of such a match."""
        for place in range(self._followed, end + 1):
            if self._source < 0:
                break
            near = range(self._source, min(self._source + _NEAR, place))
            found = next((other for other in near if tokens[other] == tokens[place]), -1)
            if found >= 0:
                self._source, self._lost = found + 1, 0
            else:
                self._lost += 1
                if self._lost > _NEAR:
                    self._source = -1
        return (-1, 0) if self._source < 0 or self._lost else (self._source - 1, REALIGNED)

    def _best(self, tokens: list[int], end: int) -> tuple[int, int]:
        """The place where the longest earlier occurrence of the text's end ends, and its length."""
        place = self._latest.get(tokens[end - 1] << _SHIFT | tokens[end], -1)
        best, longest = -1, 0
        for _ in range(_CANDIDATES):
            if place < 0:
                break
            length = 2
            while length < LONGEST_MATCH and length <= place and tokens[place - length] == tokens[end - length]:
                length += 1
            if length > longest:  # of equally long ones the latest stays
                best, longest = place, length
            if length == LONGEST_MATCH:
                break
            place = self._earlier[place]
        return best, longest
