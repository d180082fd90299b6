"""How far a routine of fused layers is from torch's: for the check before its use, and for `doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from backends.native.engine.layers import reference

_ROWS, _WIDTH = 3, 96  # no power of two: masks count
_MANY_ROWS, _OUTPUTS = 20, 40
_HEADS, _KEY_HEADS, _HEAD_WIDTH, _ROTATED = 3, 1, 20, 16
_EPSILON = 1e-5

Routine = Callable[..., Any]


@torch.inference_mode()
def error_of(name: str, routine: Routine, device: torch.device, dtype: torch.dtype) -> float:
    """The largest difference of `routine` from the one of `reference` of that name, relative to the largest number.

    Args:
        name: of a routine in `reference`.
        routine: takes the same arguments.
        device: where it runs.
        dtype: of its numbers; the reference computes in float32.
    """
    worst = 0.0
    for given in _cases(name):
        found = _results(routine, [_on(each, device, dtype) for each in given])
        # Of the numbers that `routine` was given, rounded to its dtype.
        exact = _results(getattr(reference, name), [_on(_on(each, device, dtype), device) for each in given])
        for mine, expected in zip(found, exact, strict=True):
            difference = float((mine.float() - expected).abs().max() / expected.abs().max())
            worst = difference if not difference <= worst else worst  # NaN stays
    return worst


def _cases(name: str) -> Iterator[list[Any]]:
    """Arguments of the routine, on the CPU in float32."""
    draw = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    if name == "rms_norm":
        yield [drawn(_ROWS, _WIDTH), drawn(_WIDTH), _EPSILON]
    elif name == "add_rms_norm":
        yield [drawn(_ROWS, _WIDTH), drawn(_ROWS, _WIDTH), drawn(_WIDTH), _EPSILON]
    elif name == "rotate_and_store":
        angles = torch.rand(1, _ROWS, _ROTATED, generator=draw) * 6.3
        slots = torch.tensor([4, 0, 3])
        for norms in ((None, None), (drawn(_HEAD_WIDTH), drawn(_HEAD_WIDTH))):
            pools = [torch.zeros(6, _KEY_HEADS, _HEAD_WIDTH) for _ in range(2)]
            joined = drawn(_ROWS, _HEADS + 2 * _KEY_HEADS, _HEAD_WIDTH)
            yield [joined, angles.cos(), angles.sin(), norms, slots, *pools, _HEADS, _EPSILON]
    elif name == "multiply_int8":
        levels = torch.randint(-127, 128, (_OUTPUTS, _WIDTH), generator=draw, dtype=torch.int8)
        for rows, bias in ((_ROWS, None), (_MANY_ROWS, drawn(_OUTPUTS))):
            yield [drawn(rows, _WIDTH), levels, torch.rand(_OUTPUTS, generator=draw) + 0.1, bias]
    else:
        yield [drawn(_ROWS, 2 * _WIDTH) * 3]


def _results(routine: Routine, given: list[Any]) -> list[Tensor]:
    """What a routine returns, or, if nothing, the tensors that it wrote to."""
    found = routine(*given)
    if found is None:
        joined, keys, values, heads = given[0], *given[5:8]
        return [joined[:, :heads], keys, values]
    return [found] if isinstance(found, Tensor) else list(found)


def _on(given: Any, device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    """A copy of a tensor, or of several, on a device; slots stay integers."""
    if isinstance(given, tuple):
        return tuple(_on(each, device, dtype) for each in given)
    if not isinstance(given, Tensor):
        return given
    return given.to(device, dtype if given.is_floating_point() else None, copy=True)
