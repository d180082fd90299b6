"""Copies of a pretended device that the host does not wait for, and events behind them."""

from __future__ import annotations

from collections.abc import Callable
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

    def to_host(self, made: Tensor) -> None:
        """Have `made`, which a copy was written to, hold other numbers until the copy arrives."""
        with _disable_current_modes():
            self._to_host[next(self._clock)] = made, made.clone()
            made.fill_(-1)

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
        arrived = [self._to_host.pop(each) for each in list(self._to_host) if each < now]
        left = [self._to_device.pop(each) for each in list(self._to_device) if each < now]
        with _disable_current_modes(), torch.inference_mode():
            for target, numbers in arrived:
                target.copy_(numbers)
            for target, _ in self._to_host.values():  # it may be the same memory
                target.fill_(-1)
            if not all(torch.equal(pinned, then) for pinned, then in left):
                raise Refused("a pinned tensor was written while it was being copied to the device")


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
