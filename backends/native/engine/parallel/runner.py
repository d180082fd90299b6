"""The packed execution path on several ranks: the leader's runner, and what the other ranks do.

Each rank has a share of the weights and of the key/value heads, and so a cache of its own with the same blocks. What a
step consists of is the same for all: the leader packs it and sends it as one array. Logits are whole on each rank.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.devices import ExtraArrays
from backends.native.engine.errors import GangLost
from backends.native.engine.parallel.gang import Gang
from backends.native.engine.runner.pack import Pack
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.sequence import Work


class _Order(IntEnum):
    """The first number of what the leader sends."""

    RUN = 0
    SLEEP = 1
    WAKE = 2


class LeadingRunner(PackedRunner):
    """The leader's. Whatever it does, the other ranks do.

    Args:
        model: this rank's share.
        cache: the keys and values of this rank's heads.
        gang: the other ranks.
    """

    def __init__(self, model: Any, cache: KVCache, gang: Gang) -> None:
        super().__init__(model, cache)
        self._gang = gang
        self.overlaps = False  # tokens that are on this rank's device only would not reach the other ranks

    def run_pack(self, pack: Pack, works: Seq[Work] = (), extra: ExtraArrays | None = None) -> Tensor:
        """See `PackedRunner`.

        Raises:
            GangLost: the step failed. The other ranks may wait within it for ever, so it cannot be repeated.
        """
        try:
            self._gang.tell(array("q", [_Order.RUN]) + pack.numbers())
            return super().run_pack(pack, works, extra)
        except Exception as error:
            raise GangLost(f"a step over {self._gang.size} ranks failed: {error!r}") from error

    def sleep(self) -> None:
        """See `Runner`."""
        self._gang.tell(array("q", [_Order.SLEEP]))
        super().sleep()

    def wake(self) -> None:
        """See `Runner`."""
        self._gang.tell(array("q", [_Order.WAKE]))
        super().wake()


@torch.inference_mode()
def follow(runner: PackedRunner, gang: Gang) -> None:
    """Do what the leader does, until it ends this process."""
    while True:
        order, *_ = numbers = gang.hear()
        match order:
            case _Order.RUN:
                runner.run_pack(Pack.of_numbers(numbers[1:]))
            case _Order.SLEEP:
                runner.sleep()
            case _Order.WAKE:
                runner.wake()
