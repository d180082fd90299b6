"""Gumbel noise as a pure function of (seed, position, token id): a seed replays alone, in any batch, after preemption.

A counter hash in integer arithmetic, so the bits are the same on every device; no generator and no state. Adding the
noise to scores and taking the largest draws from their softmax (Gumbel-max trick).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
# The multipliers of MurmurHash3's fmix32, less 2**32: congruent, and with a factor below 2**32 never beyond an int64.
_FIRST = 0x85EBCA6B - (1 << 32)
_SECOND = 0xC2B2AE35 - (1 << 32)
# Picking scores out pays if they are fewer than one in so many.
_FEW = 8


def gumbel(seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    """Standard Gumbel noise.

    Args:
        seeds: one unsigned 64-bit seed a row.
        positions: the index in its sequence of the token to be chosen, one a row.
        vocab_size: tokens to choose from.
        device: where the noise is wanted; its values do not depend on it.

    Returns:
        [rows, vocab_size] float32, finite.
    """
    return _gumbel_of(random_bits(seeds, positions, vocab_size, device))


def _gumbel_of(bits: Tensor) -> Tensor:
    # A uniform close to 0 keeps its precision in float32, one close to 1 does not: so let large noise come from small
    # values. The clamp keeps 1 - uniform above 0.
    uniform = ((bits.to(torch.float32) + 0.5) * 2.0**-32).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def perturb(scores: Tensor, seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """Add the noise of `gumbel` to [rows, vocabulary] scores, in place; where few are left, only to those."""
    left = scores.isfinite()
    if int(left.sum()) * _FEW > scores.numel():
        return scores.add_(gumbel(seeds, positions, scores.shape[1], scores.device))
    rows, tokens = left.nonzero(as_tuple=True)
    low, high = _row_keys(seeds, positions, scores.device)
    scores[rows, tokens] += _gumbel_of(_hash(tokens, low[rows], high[rows]))
    return scores


def random_bits(seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    """[rows, vocab_size] int64 of 32 random bits each."""
    low, high = _row_keys(seeds, positions, device)
    return _hash(torch.arange(vocab_size, device=device), low.unsqueeze(1), high.unsqueeze(1))


def _hash(tokens: Tensor, low: Tensor, high: Tensor) -> Tensor:
    bits = _mix((tokens + low).bitwise_and_(_MASK))
    return _mix(bits.bitwise_xor_(high))


def _row_keys(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The lower and the upper halves of every row's key, [rows] each."""
    keys = [_row_key(seed, position) for seed, position in zip(seeds, positions, strict=True)]
    low = torch.tensor([key & _MASK for key in keys], device=device)
    high = torch.tensor([key >> 32 for key in keys], device=device)
    return low, high


def _row_key(seed: int, position: int) -> int:
    return _mix64(_mix64(seed & _MASK64) ^ position)


def _mix64(value: int) -> int:
    """SplitMix64's step: Steele, Lea and Flood, OOPSLA 2014."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _mix(value: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser, in place."""
    value.bitwise_xor_(value >> 16).mul_(_FIRST).bitwise_and_(_MASK)
    value.bitwise_xor_(value >> 13).mul_(_SECOND).bitwise_and_(_MASK)
    return value.bitwise_xor_(value >> 16)
