"""Which tokens may be drawn: temperature, top_k, top_p, min_p and typical_p over a batch.

Definitions and order are those of the logits warpers in transformers, with one difference: tokens of equal score stay
or go together, so that the result does not depend on how a sort breaks ties. Each filter touches only the rows that
ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from backends.native.messages import SamplingParams

_NEVER = float("-inf")
# Of how many likeliest tokens a nucleus is sought first: sorting a whole vocabulary takes twenty times as long.
_CANDIDATES = 1024
Filter = Callable[[Tensor, Tensor], Tensor]


def filter_scores(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Scale and filter the rows that will be sampled.

    Args:
        scores: [rows, vocabulary] float32, overwritten.
        params: one a row, with temperature above 0.

    Returns:
        [rows, vocabulary], -inf where a token must not be drawn. At least one a row remains.
    """
    if any(p.temperature != 1.0 for p in params):
        scores /= _column([max(p.temperature, 1e-6) for p in params], scores)
    vocab = scores.shape[1]
    _apply(scores, top_k, [p.top_k if 0 < p.top_k < vocab else None for p in params])
    _apply(scores, top_p, [p.top_p if p.top_p < 1 else None for p in params])
    _apply(scores, min_p, [p.min_p if p.min_p > 0 else None for p in params])
    _apply(scores, typical_p, [p.typical_p if p.typical_p < 1 else None for p in params])
    return scores


def top_k(scores: Tensor, k: Tensor) -> Tensor:
    """Keep the k highest. `k` is [rows, 1]."""
    best = scores.topk(int(k.max()), dim=-1).values
    return scores.masked_fill(scores < best.gather(1, k.long() - 1), _NEVER)


def top_p(scores: Tensor, mass: Tensor) -> Tensor:
    """Keep the fewest highest whose probabilities together reach `mass` [rows, 1] (nucleus, arXiv 1904.09751)."""
    cut, reached = _nucleus(scores, mass, min(_CANDIDATES, scores.shape[1]))
    if not reached.all():
        flat = ~reached
        cut[flat] = _nucleus(scores[flat], mass[flat], scores.shape[1])[0]
    return scores.masked_fill(scores < cut, _NEVER)


def _nucleus(scores: Tensor, mass: Tensor, candidates: int) -> tuple[Tensor, Tensor]:
    """[rows, 1], the least score in the nucleus among the `candidates` highest; [rows], whether they hold it all."""
    some = candidates < scores.shape[1]
    ordered = scores.topk(candidates).values if some else scores.sort(descending=True).values
    probabilities = (ordered - scores.logsumexp(-1, keepdim=True)).exp()
    upto = probabilities.cumsum(-1)
    kept = (upto - probabilities < mass).sum(-1, keepdim=True).clamp_(min=1)
    return ordered.gather(1, kept - 1), upto[:, -1] >= mass[:, 0]


def min_p(scores: Tensor, share: Tensor) -> Tensor:
    """Keep what has at least `share` [rows, 1] of the likeliest one's probability (arXiv 2407.01082)."""
    return scores.masked_fill(scores < scores.amax(-1, keepdim=True) + share.log(), _NEVER)


def typical_p(scores: Tensor, mass: Tensor) -> Tensor:
    """Keep the tokens whose surprise is closest to the expected one, up to `mass` [rows, 1] (arXiv 2202.00666)."""
    logs = scores.log_softmax(-1)
    entropy = -(logs * logs.exp()).nansum(-1, keepdim=True)
    distance = (-logs - entropy).abs()
    nearest, order = distance.sort(dim=-1, stable=True)
    cumulative = logs.exp().gather(1, order).cumsum(-1)
    last = (cumulative < mass).sum(-1, keepdim=True).clamp_(max=scores.shape[1] - 1)
    return scores.masked_fill(distance > nearest.gather(1, last), _NEVER)


def _apply(scores: Tensor, keep: Filter, values: Sequence[float | None]) -> None:
    """Filter, in place, the rows that have a value."""
    rows = [row for row, value in enumerate(values) if value is not None]
    if not rows:
        return
    asked = _column([value for value in values if value is not None], scores)
    if len(rows) == len(values):
        scores.copy_(keep(scores, asked))
    else:
        index = torch.tensor(rows, device=scores.device)
        scores[index] = keep(scores[index], asked)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)
