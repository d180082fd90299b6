"""Logits warpers: temperature, top_k, top_p, min_p and typical_p over a batch, before sampling.

Definitions and order are those of the logits warpers in transformers, with one difference: tokens of equal score stay
or go together, so that the result does not depend on how a sort breaks ties. Each warper touches only the rows that
ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from backends.native.engine.devices import constant
from backends.native.protocol.messages import SamplingParams

_MASKED = float("-inf")
# The bins of `lowest_kept`, and how far below the highest value the last but one ends.
_BINS, _RANGE = 2048, 32.0
# Of `_lowest_kept_by_digits`: the bits of each pass, the greatest int32, and how many units a probability of 1 has.
_DIGITS = (11, 11, 10)
_HIGHEST = 2**31 - 1
_UNITS = 2.0**40

Warper = Callable[[Tensor, Tensor], Tensor]
"""Scores [rows, vocabulary] and a parameter [rows, 1] to scores with -inf for the tokens that must not be drawn."""


def mask_top_k_top_p(scores: Tensor, k: Sequence[int], p: Sequence[float]) -> None:
    """Put -inf, in place, for all but each row's `k` highest scores and then for all but the nucleus of mass `p`.

    Args:
        scores: [rows, vocabulary].
        k: one a row; 0: all.
        p: one a row; 1 or more: all.
    """
    vocab = scores.shape[1]
    counts = [count if 0 < count < vocab else None for count in k]
    _apply(scores, partial(top_k, most=max((count or 0 for count in counts), default=0)), counts)
    _apply(scores, top_p, [mass if mass < 1 else None for mass in p])


def warp_logits(
    scores: Tensor,
    params: Sequence[SamplingParams],
    mask: Callable[[Tensor, Sequence[int], Sequence[float]], None] = mask_top_k_top_p,
) -> Tensor:
    """Scale and mask the rows that will be sampled.

    Args:
        scores: [rows, vocabulary] float32, overwritten.
        params: one a row, with temperature above 0.
        mask: the implementation of top_k and top_p (`operations`).

    Returns:
        [rows, vocabulary], -inf where a token must not be drawn. At least one token a row remains.
    """
    if any(p.temperature != 1.0 for p in params):
        # The bound keeps tiny temperatures from overflowing to inf, whose softmax is NaN.
        scores /= _column([max(p.temperature, 1e-6) for p in params], scores)
    # Order as in transformers: top_k, top_p, min_p, typical_p. Each sees the softmax over what the previous ones left.
    mask(scores, [p.top_k for p in params], [p.top_p for p in params])
    _apply(scores, min_p, [p.min_p if p.min_p > 0 else None for p in params])
    _apply(scores, typical_p, [p.typical_p if p.typical_p < 1 else None for p in params])
    return scores


def top_k(scores: Tensor, k: Tensor, most: int) -> Tensor:
    """Keep the `k` [rows, 1] highest scores; `most` is the largest k."""
    # One `topk` for the largest k; each row then reads the bound at its own k.
    best = scores.topk(most, dim=-1).values
    return _mask_below(scores, best.gather(1, k.long() - 1))


def top_p(scores: Tensor, mass: Tensor) -> Tensor:
    """Keep the fewest highest scores whose probabilities reach `mass` [rows, 1] (nucleus, arXiv 1904.09751)."""
    return _mask_below(scores, lowest_kept(scores, scores.softmax(-1), mass))


def min_p(scores: Tensor, share: Tensor) -> Tensor:
    """Keep tokens of at least `share` [rows, 1] of the highest probability (arXiv 2407.01082)."""
    # In logarithms: p >= share * p_max is score >= max score + log(share), so no softmax is needed.
    return _mask_below(scores, scores.amax(-1, keepdim=True) + share.log())


def typical_p(scores: Tensor, mass: Tensor) -> Tensor:
    """Keep the tokens whose surprisal is closest to the entropy, up to `mass` [rows, 1] (arXiv 2202.00666)."""
    logs = scores.log_softmax(-1)
    probabilities = logs.exp()
    # Masked tokens: log 0 times 0 is NaN, and counts as 0.
    entropy = -(logs * probabilities).nansum(-1, keepdim=True)
    # Negated, so that the most typical tokens have the highest values, which `lowest_kept` keeps.
    nearness = -(-logs - entropy).abs()
    return scores.masked_fill(nearness < lowest_kept(nearness, probabilities, mass), _MASKED)


def lowest_kept(values: Tensor, probabilities: Tensor, mass: Tensor) -> Tensor:
    """[rows, 1], the lowest of the highest `values` [rows, vocabulary] whose probabilities reach `mass` [rows, 1].

    On a CPU, sorting a whole vocabulary takes twenty times as long as adding probabilities up in bins by value and
    sorting only the bin in which `mass` is reached. An accelerator would have to wait for that bin.
    """
    if values.device.type != "cpu":
        return _lowest_kept_by_digits(values, probabilities, mass)
    # Step 1: bins of width 1/64 by distance from the highest value; the last takes all beyond `_RANGE`, -inf included.
    # NaN may convert to a negative integer, which the second clamp turns into a bin.
    bins = ((values.amax(-1, keepdim=True) - values) * (_BINS / _RANGE)).clamp_(max=_BINS - 1).long().clamp_(min=0)
    # Step 2: the mass of each bin, cumulated from the highest values on.
    upto = probabilities.new_zeros(len(values), _BINS).scatter_add_(1, bins, probabilities).cumsum(-1)
    # Step 3: the first bin in which `mass` is reached. Rounding can leave the total below `mass`: then it is the last
    # bin that holds a token.
    reached = (upto < mass).sum(-1, keepdim=True).minimum(bins.amax(-1, keepdim=True))
    before = torch.where(reached > 0, upto.gather(1, (reached - 1).clamp_(min=0)), 0.0)
    lowest = []
    # Step 4: sort that bin's few values only, for the mass that the bins before it leave.
    for row, held in enumerate(bins == reached):
        index = held.nonzero().squeeze(1)
        some, theirs = values[row].index_select(0, index), probabilities[row].index_select(0, index)
        lowest.append(_lowest_kept_by_sorting(some[None], theirs[None], (mass - before)[row, None]))
    return torch.cat(lowest)


def _lowest_kept_by_sorting(values: Tensor, probabilities: Tensor, mass: Tensor) -> Tensor:
    ordered, order = values.sort(descending=True)
    reached = (probabilities.gather(1, order).cumsum(-1) < mass).sum(-1, keepdim=True)
    # The clamp: rounding can leave the whole sum below `mass`; then all are kept.
    return ordered.gather(1, reached.clamp_(max=values.shape[1] - 1))


def _lowest_kept_by_digits(values: Tensor, probabilities: Tensor, mass: Tensor) -> Tensor:
    """As `lowest_kept`, for float32, without a sort or a wait: three passes of the same operations whatever the values.

    A radix selection: the order of floats is that of their bits as integers, of which each pass finds the next digit.
    Probabilities are added up as integers, so that the order in which a device adds them makes no difference.
    """
    bits = (values + 0.0).view(torch.int32)  # + 0.0: of -0.0 and 0.0 the bits differ
    # Descending: 0 would be the highest of all floats.
    order = _HIGHEST - (bits ^ ((bits >> 31) & _HIGHEST)).long()
    weights = (probabilities * _UNITS).long()
    # Rounding can leave the whole sum below `mass`; then all are kept.
    left = (mass * _UNITS).long().clamp_(min=1).minimum(weights.sum(-1, keepdim=True))
    found = torch.zeros_like(left)
    shift = 32
    for width in _DIGITS:
        shift -= width
        digits = (order >> shift) & ((1 << width) - 1)
        upto = weights.new_zeros(len(values), 1 << width).scatter_add_(1, digits, weights).cumsum(-1)
        digit = (upto < left).sum(-1, keepdim=True).clamp_(max=(1 << width) - 1)
        left = left - torch.where(digit > 0, upto.gather(1, (digit - 1).clamp_(min=0)), 0)
        weights = torch.where(digits == digit, weights, 0)
        found = (found << width) | digit
    bits = (_HIGHEST - found).to(torch.int32)
    return (bits ^ ((bits >> 31) & _HIGHEST)).view(torch.float32)


def _mask_below(scores: Tensor, lowest: Tensor) -> Tensor:
    """Put -inf for scores below `lowest` [rows, 1].

    On a CPU row by row: `threshold`, which torch vectorizes there, takes one bound for all.
    """
    if scores.device.type != "cpu":
        return scores.masked_fill(scores < lowest, _MASKED)
    # `threshold` keeps what is greater than its bound, and `lowest` itself must stay: the bound is the next smaller
    # float.
    below = torch.nextafter(lowest, torch.full_like(lowest, _MASKED)).squeeze(1).tolist()
    return torch.stack([functional.threshold(row, bound, _MASKED) for row, bound in zip(scores, below, strict=True)])


def _apply(scores: Tensor, warp: Warper, values: Sequence[float | None]) -> None:
    """Warp, in place, the rows that have a value."""
    rows = [row for row, value in enumerate(values) if value is not None]
    if not rows:
        return
    parameter = _column([value for value in values if value is not None], scores)
    if len(rows) == len(values):
        scores.copy_(warp(scores, parameter))
    else:
        index = constant(scores.device, "q", tuple(rows))
        scores.index_copy_(0, index, warp(scores.index_select(0, index), parameter))


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return constant(like.device, "f", tuple(values)).unsqueeze(1)
