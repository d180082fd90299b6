"""Attention that is not causal: which tokens of a step see later ones of their prompt."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from backends.native.engine.scheduling.sequence import Work
from backends.native.engine.scheduling.unchunked import Span, image_spans
from backends.native.protocol.messages import Unchunked


def last_keys(works: Seq[Work], unchunked: Unchunked) -> dict[int, Tensor]:
    """See `AttentionMetadata.last_keys`."""
    found: dict[int, Tensor] = {}
    place = 0
    for work in works:
        # Each token of a work with drafts attends as a sequence of its own (`packed`), and is behind the prompt.
        if work.count > 1 and not work.drafts:
            last = _last(work, _spans(work, unchunked))
            if last is not None:
                found[place] = last
        place += work.count if work.drafts else 1
    return found


def _spans(work: Work, unchunked: Unchunked) -> list[Span]:
    """What of the sequence sees itself in both directions."""
    sequence = work.sequence
    if work.start >= sequence.prompt_length or unchunked == "nothing":
        return []
    return [(0, sequence.prompt_length)] if unchunked == "prompt" else image_spans(sequence.request.features)


def _last(work: Work, spans: Seq[Span]) -> Tensor | None:
    """[count], the position of the last token that each token of `work` sees; None: it is the token itself."""
    begin, end = work.start, work.start + work.count
    touched = [(max(first, begin), min(stop, end)) for first, stop in spans if first < end and stop > begin]
    if not any(stop - first > 1 for first, stop in touched):
        return None
    last = torch.arange(begin, end)
    for first, stop in touched:
        last[first - begin : stop - begin] = stop - 1
    return last
