"""Logits warpers: temperature, top_k, top_p, min_p and typical_p over a batch, before sampling.

Definitions and order are those of the logits warpers in transformers, with one difference: tokens of equal score are
kept or removed together, so that the result does not depend on how a sort breaks ties. Each warper touches only the
rows whose parameters enable it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from backends.native.engine.kernels.top_k_top_p import keep_likeliest
from backends.native.protocol.messages import SamplingParams

_NEVER = float("-inf")
# The number of bins of `least_kept`, and how far below the row's maximum the last but one ends.
_BINS, _RANGE = 2048, 32.0
Warper = Callable[[Tensor, Tensor], Tensor]


def warp_logits(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Apply all warpers to the rows that will be sampled.

    Args:
        scores: [rows, vocabulary] float32, overwritten.
        params: one a row, with temperature above 0.

    Returns:
        [rows, vocabulary], -inf where a token must not be sampled; at least one token a row remains.
    """
    if any(p.temperature != 1.0 for p in params):
        scores /= _column([max(p.temperature, 1e-6) for p in params], scores)
    if not keep_likeliest(scores, [p.top_k for p in params], [p.top_p for p in params]):
        vocab = scores.shape[1]
        _apply(scores, top_k, [p.top_k if 0 < p.top_k < vocab else None for p in params])
        _apply(scores, top_p, [p.top_p if p.top_p < 1 else None for p in params])
    _apply(scores, min_p, [p.min_p if p.min_p > 0 else None for p in params])
    _apply(scores, typical_p, [p.typical_p if p.typical_p < 1 else None for p in params])
    return scores


def top_k(scores: Tensor, k: Tensor) -> Tensor:
    """Keep the k highest scores. `k` is [rows, 1]."""
    best = scores.topk(int(k.max()), dim=-1).values
    return _from(scores, best.gather(1, k.long() - 1))


def top_p(scores: Tensor, mass: Tensor) -> Tensor:
    """Keep the smallest set of most likely tokens whose probabilities reach `mass` [rows, 1] (arXiv 1904.09751)."""
    return _from(scores, least_kept(scores, scores.softmax(-1), mass))


def min_p(scores: Tensor, share: Tensor) -> Tensor:
    """Keep tokens with at least `share` [rows, 1] of the most likely token's probability (arXiv 2407.01082)."""
    return _from(scores, scores.amax(-1, keepdim=True) + share.log())


def typical_p(scores: Tensor, mass: Tensor) -> Tensor:
    """Keep the tokens whose surprisal is closest to the entropy, up to `mass` [rows, 1] (arXiv 2202.00666)."""
    logs = scores.log_softmax(-1)
    probabilities = logs.exp()
    entropy = -(logs * probabilities).nansum(-1, keepdim=True)
    nearness = -(-logs - entropy).abs()
    return scores.masked_fill(nearness < least_kept(nearness, probabilities, mass), _NEVER)


def least_kept(values: Tensor, probabilities: Tensor, mass: Tensor) -> Tensor:
    """The smallest value that is kept when the highest values are kept until their probabilities reach `mass`.

    On a CPU, sorting a whole vocabulary takes twenty times as long as a histogram by value followed by a sort of the
    one bin in which `mass` is reached.

    Args:
        values: [rows, vocabulary].
        probabilities: of the same shape.
        mass: [rows, 1].

    Returns:
        [rows, 1].
    """
    if values.device.type != "cpu":
        return _least_sorted(values, probabilities, mass)
    bins = ((values.amax(-1, keepdim=True) - values) * (_BINS / _RANGE)).clamp_(max=_BINS - 1).long().clamp_(min=0)
    upto = probabilities.new_zeros(len(values), _BINS).scatter_add_(1, bins, probabilities).cumsum(-1)
    reached = (upto < mass).sum(-1, keepdim=True).minimum(bins.amax(-1, keepdim=True))
    before = torch.where(reached > 0, upto.gather(1, (reached - 1).clamp_(min=0)), 0.0)
    least = []
    for row, held in enumerate(bins == reached):
        index = held.nonzero().squeeze(1)
        some, theirs = values[row].index_select(0, index), probabilities[row].index_select(0, index)
        least.append(_least_sorted(some[None], theirs[None], (mass - before)[row, None]))
    return torch.cat(least)


def _least_sorted(values: Tensor, probabilities: Tensor, mass: Tensor) -> Tensor:
    """`least_kept` by a full sort."""
    ordered, order = values.sort(descending=True)
    reached = (probabilities.gather(1, order).cumsum(-1) < mass).sum(-1, keepdim=True)
    return ordered.gather(1, reached.clamp_(max=values.shape[1] - 1))


def _from(scores: Tensor, least: Tensor) -> Tensor:
    """Keep scores of at least `least` [rows, 1]; row by row on a CPU, where torch vectorizes `threshold` only."""
    if scores.device.type != "cpu":
        return scores.masked_fill(scores < least, _NEVER)
    below = torch.nextafter(least, torch.full_like(least, _NEVER)).squeeze(1).tolist()
    return torch.stack([functional.threshold(row, bound, _NEVER) for row, bound in zip(scores, below, strict=True)])


def _apply(scores: Tensor, warp: Warper, values: Sequence[float | None]) -> None:
    """Apply a warper in place to the rows that have a value."""
    rows = [row for row, value in enumerate(values) if value is not None]
    if not rows:
        return
    parameter = _column([value for value in values if value is not None], scores)
    if len(rows) == len(values):
        scores.copy_(warp(scores, parameter))
    else:
        index = torch.tensor(rows, device=scores.device)
        scores.index_copy_(0, index, warp(scores.index_select(0, index), parameter))


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)
