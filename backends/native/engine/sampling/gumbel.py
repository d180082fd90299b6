"""Gumbel noise as a pure function of (seed, position, token id).

A seed gives the same tokens alone, in any batch and after preemption. The noise comes from a counter-based hash in
integer arithmetic: no generator, no state, and the same bits on every device. The largest of scores plus noise is a
draw from the scores' softmax (Gumbel-max trick).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from backends.native.engine.devices import send

_MASK = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
# The multipliers of MurmurHash3's fmix32 as an int32 holds them: products wrap to the same bits.
_FIRST = 0x85EBCA6B - (1 << 32)
_SECOND = 0xC2B2AE35 - (1 << 32)
# Making noise for single tokens pays if fewer than one in so many are left of a row (measured).
_SPARSE = 8


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
    # -log(-log(1 - u)) and not -log(-log(u)): float32 is precise for u close to 0, not close to 1, so the long upper
    # tail of the noise must come from small u. The clamp keeps 1 - u above 0.
    # By way of int64: not every device has unsigned integers.
    uniform = (bits.long() & _MASK).to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def perturb(
    scores: Tensor,
    seeds: Sequence[int],
    positions: Sequence[int],
    add_noise: Callable[[Tensor, Tensor], None] | None = None,
) -> Tensor:
    """Add the noise of `gumbel` to [rows, vocabulary] scores, in place.

    Args:
        scores: float32.
        seeds: one unsigned 64-bit seed a row.
        positions: the index in its sequence of the token to be chosen, one a row.
        add_noise: the implementation (`operations`); None: `add_gumbel_noise`.
    """
    (add_noise or add_gumbel_noise)(scores, keys_on(scores.device, row_keys(seeds, positions)))
    return scores


def add_gumbel_noise(scores: Tensor, keys: Tensor) -> None:
    """Add each row's noise to its scores, in place.

    On a CPU, in a row of which few tokens are left (the others are -inf), noise is made for those only. On an
    accelerator that would save less than the wait for their number takes.

    Args:
        scores: [rows, vocabulary] float32.
        keys: [rows, 2] int32, the lower and the upper half of each row's key (`row_keys`).
    """
    low, high = keys.unbind(1)
    everything = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)
    if scores.device.type != "cpu":
        scores += _gumbel_of(_hash(everything, low.unsqueeze(1), high.unsqueeze(1)))
        return
    left = scores > float("-inf")
    # After top_k or top_p a row has tens of tokens left out of a hundred thousand; both ways give a token the same
    # noise.
    few = left.sum(-1) * _SPARSE <= scores.shape[1]
    many = (~few).nonzero().squeeze(1)
    if len(many):
        noise = _gumbel_of(_hash(everything, low[many].unsqueeze(1), high[many].unsqueeze(1)))
        scores.index_add_(0, many, noise)
    if len(many) < len(scores):
        rows, tokens = (left & few.unsqueeze(1)).nonzero(as_tuple=True)
        # `nonzero` gives each pair once, so the indexed addition has no lost updates.
        scores[rows, tokens] += _gumbel_of(_hash(tokens.int(), low[rows], high[rows]))


def random_bits(seeds: Sequence[int], positions: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    """[rows, vocab_size] int32 of 32 random bits each."""
    low, high = keys_on(device, row_keys(seeds, positions)).unbind(1)
    return _hash(torch.arange(vocab_size, dtype=torch.int32, device=device), low.unsqueeze(1), high.unsqueeze(1))


def _hash(tokens: Tensor, low: Tensor, high: Tensor) -> Tensor:
    # Two rounds, one for each half of the key: int32 arithmetic wraps in the same way on every device.
    return _mix(_mix(tokens + low).bitwise_xor_(high))


def row_keys(seeds: Sequence[int], positions: Sequence[int]) -> array[int]:
    """[rows * 2] int32, the lower and the upper half of every row's key."""
    keys = array("Q", [_row_key(seed, position) for seed, position in zip(seeds, positions, strict=True)])
    # The same bytes: engines run on little-endian machines only.
    return array("i", keys.tobytes())


def keys_on(device: torch.device, keys: array[int]) -> Tensor:
    """[rows, 2] int32, keys of rows on a device."""
    return send(device, keys)[0].view(-1, 2)


def _row_key(seed: int, position: int) -> int:
    # On the CPU in Python's integers: two multiplications a row, and torch has no unsigned 64-bit arithmetic on all
    # devices. The inner mix keeps neighbouring seeds with neighbouring positions apart.
    return _mix64(_mix64(seed & _MASK64) ^ position)


def _mix64(value: int) -> int:
    """SplitMix64's step: Steele, Lea and Flood, OOPSLA 2014."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _mix(value: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finalizer, in place. The masks drop the sign bits that shifting an int32 copies in."""
    value.bitwise_xor_((value >> 16).bitwise_and_(0xFFFF)).mul_(_FIRST)
    value.bitwise_xor_((value >> 13).bitwise_and_(0x7FFFF)).mul_(_SECOND)
    return value.bitwise_xor_((value >> 16).bitwise_and_(0xFFFF))
