"""Images whose tokens see each other, and therefore are run in one step. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from backends.native.protocol.messages import Feature

Span = tuple[int, int]
"""The first token, and the one behind the last."""


def image_spans(features: Sequence[Feature]) -> list[Span]:
    """The runs of adjacent tokens in whose places embeddings of images go, in order.

    Tokens of two images without a token between them are one run, as for transformers.
    """
    places = [
        feature.offset + place
        for feature in features
        for place in range(feature.length)
        if not feature.is_embed or feature.is_embed[place]
    ]
    # Places of one run have the same distance from their ranks.
    runs = (list(run) for _, run in groupby(enumerate(places), key=lambda each: each[1] - each[0]))
    spans = [(run[0][1], run[-1][1] + 1) for run in runs]
    assert all(stop < start for (_, stop), (start, _) in pairwise(spans)), "features are in order"
    return spans


def unsplit(spans: Sequence[Span], start: int, count: int, budget: int) -> int:
    """How many tokens from `start` on to run instead of `count`, so that no span is cut; 0: `budget` has no room."""
    end = start + count
    cut = next(((first, stop) for first, stop in spans if first < end < stop), None)
    if cut is None:
        return count
    first, stop = cut
    if first > start:
        return first - start
    return stop - start if stop - start <= budget else 0
