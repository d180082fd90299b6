"""Copies of a pretended device that the host does not wait for, and events behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


class Refused(RuntimeError):
    """What a real device would refuse."""


class Copies:
    """Those that are under way, by when they were started."""

    def __init__(self) -> None:
        self._clock = count()
        self._to_host: dict[int, tuple[Tensor, Tensor]] = {}
        self._to_device: dict[int, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def in_order(self, pinned: Tensor) -> Iterator[None]:
        """For a copy from `pinned`, which the device begins when those to the same memory are done."""
        late = [each for each in self._to_host.values() if _overlap(each[0], pinned)]
        self._write(late)
        yield
        with _disable_current_modes(), torch.inference_mode():
            for target, _ in late:
                target.fill_(-1)

    def to_host(self, made: Tensor) -> None:
        """Have `made`, which a copy was written to, hold other numbers until the copy arrives."""
        with _disable_current_modes():
            self._to_host[next(self._clock)] = made, made.clone()
            made.fill_(-1)

    def overwrite(self, pinned: Tensor) -> None:
        """Note that a copy to `pinned` follows, which the device begins when those from the same memory are done.

        Raises:
            Refused: see `arrive`.
        """
        self._write([target for target in self._to_host.values() if _overlap(target[0], pinned)])
        self._check([now for now, (other, _) in self._to_device.items() if _overlap(other, pinned)])

    def to_device(self, pinned: Tensor) -> None:
        """Note a copy from pinned memory, which must stay as it is until then."""
        with _disable_current_modes():
            self._to_device[next(self._clock)] = pinned, pinned.clone()

    def now(self) -> int:
        """A time behind all copies that were started."""
        return next(self._clock)

    def arrive(self, now: int) -> None:
        """Let copies that were started before `now` take effect.

        Raises:
            Refused: a pinned tensor was written while a copy from it was under way.
        """
        self._write([self._to_host.pop(each) for each in list(self._to_host) if each < now])
        with _disable_current_modes(), torch.inference_mode():
            for target, _ in self._to_host.values():  # it may be the same memory
                target.fill_(-1)
        self._check([each for each in self._to_device if each < now])

    def _write(self, arrived: list[tuple[Tensor, Tensor]]) -> None:
        with _disable_current_modes(), torch.inference_mode():
            for target, numbers in arrived:
                target.copy_(numbers)

    def _check(self, done: list[int]) -> None:
        left = [self._to_device.pop(each) for each in done]
        with _disable_current_modes():
            if not all(torch.equal(pinned, then) for pinned, then in left):
                raise Refused("a pinned tensor was written while it was being copied to the device")


def _overlap(one: Tensor, other: Tensor) -> bool:
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes


class Event:
    """Stands for a `torch.Event` that was recorded behind what was started so far."""

    def __init__(self, copies: Copies, note: Callable[[], None]) -> None:
        self._copies = copies
        self._now = copies.now()
        self._note = note

    def synchronize(self) -> None:
        """Wait for it."""
        self._note()
        self._copies.arrive(self._now)
