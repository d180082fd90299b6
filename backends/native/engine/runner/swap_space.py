"""Swap space: what preempted sequences had on an accelerator, in pinned memory of the host.

Strategy: pages are copied out when a sequence is preempted and copied back into its new pages when it returns, instead
of running its tokens again (vLLM's swapping, arXiv 2309.06180). The host waits for no copy: the device runs all in
their order, so a page may be given to another sequence, and what was copied out be read again, at once.

- *Room* is taken once. If there is too little for a sequence, the pages that fit are copied, and the tokens behind
  them run again; a recurrent state is copied with all its pages or not at all.
- *Shared pages* are copied, too, since they may be evicted meanwhile. Those that the prefix cache still has are not
  copied back.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.devices import index_tensor
from backends.native.engine.scheduling.sequence import Sequence
from backends.native.engine.state.pool import StateKey, StatePool


@dataclass(slots=True, eq=False)
class _SwappedOut:
    """What is kept of one sequence: its first `tokens` tokens in `blocks` of the host, and its recurrent state."""

    tokens: int
    blocks: list[int]
    state: dict[StateKey, Tensor]


class SwapSpace:
    """Implements `scheduling.sequence.SwapSpace`.

    Args:
        cache: the device's pages.
        states: its recurrent states; None: the model has none.
        blocks: pages of the host.
        sequences: the most sequences with recurrent states that are kept.

    Raises:
        RuntimeError, MemoryError: the host has no such memory.
    """

    def __init__(self, cache: KVCache, states: StatePool | None, blocks: int, sequences: int) -> None:
        self._states = states
        self._cache = cache
        self._count = blocks
        self._most_states = sequences
        self._kept: dict[Sequence, _SwappedOut] = {}
        self.attach(cache)

    @property
    def sequences(self) -> int:
        """See `scheduling.sequence.SwapSpace`."""
        return len(self._kept)

    @property
    def usage(self) -> float:
        """See `scheduling.sequence.SwapSpace`."""
        return 1 - len(self._free) / self._count

    def attach(self, cache: KVCache) -> None:
        """Serve another cache, with memory of the host if it has pages. Nothing may be swapped out."""
        self._cache = cache
        self._free = list(range(self._count if cache.blocks else 0))
        sizes = [pool.shape[1] for pool in cache.pages()]
        # One piece of memory: torch rounds each up to a power of two.
        memory = torch.empty(len(self._free) * sum(sizes), dtype=torch.uint8, pin_memory=True)
        parts = torch.split(memory, [len(self._free) * size for size in sizes])
        self._pages = [part.view(-1, size) for part, size in zip(parts, sizes, strict=True)]

    @torch.inference_mode()
    def save(self, sequence: Sequence) -> None:
        """See `scheduling.sequence.SwapSpace`."""
        size, tokens = self._cache.block_size, sequence.computed
        needed = -(-tokens // size)
        count = min(needed, len(self._free))
        # What a prompt that is scored collects beside its pages is collected again with its tokens.
        if not count or sequence.scores_prompt:
            return
        state: dict[StateKey, Tensor] = {}
        if self._states is not None:
            rows = self._states.rows(sequence, tokens)
            if rows is None or count < needed or len(self._kept) == self._most_states:
                return
            state = {
                name: torch.empty(row.shape, dtype=row.dtype, pin_memory=True).copy_(row, non_blocking=True)
                for name, row in rows.items()
            }
        blocks, self._free = self._free[:count], self._free[count:]
        for pool, pages in zip(self._cache.pages(), self._pages, strict=True):
            rows_out = pool.index_select(0, index_tensor(sequence.blocks[:count], pool.device))
            for here, first, last in _runs(blocks):
                pages[first:last].copy_(rows_out[here : here + last - first], non_blocking=True)
        self._kept[sequence] = _SwappedOut(min(tokens, count * size), blocks, state)

    @torch.inference_mode()
    def restore(self, sequence: Sequence, found: int) -> int:
        """See `scheduling.sequence.SwapSpace`."""
        kept = self._kept.get(sequence)
        if kept is None:
            return 0
        self.drop(sequence)
        if kept.tokens < found * self._cache.block_size:
            return 0
        if self._states is not None:
            self._states.set_rows(sequence, kept.state, kept.tokens)
        blocks = kept.blocks[found:]
        for pool, pages in zip(self._cache.pages(), self._pages, strict=True) if blocks else ():
            rows_in = pool.new_empty(len(blocks), pool.shape[1])
            for here, first, last in _runs(blocks):
                rows_in[here : here + last - first].copy_(pages[first:last], non_blocking=True)
            pool.index_copy_(0, index_tensor(sequence.blocks[found : len(kept.blocks)], pool.device), rows_in)
        return kept.tokens

    def drop(self, sequence: Sequence) -> None:
        """See `scheduling.sequence.SwapSpace`."""
        kept = self._kept.pop(sequence, None)
        if kept is not None:
            self._free = sorted(self._free + kept.blocks)  # so that copies are of long runs


def _runs(blocks: Seq[int]) -> Iterator[tuple[int, int, int]]:
    """The runs of neighbours among `blocks`: of each its place in them, its first block and the one behind its last."""
    here = 0
    for place in range(1, len(blocks) + 1):
        if place == len(blocks) or blocks[place] != blocks[place - 1] + 1:
            yield here, blocks[here], blocks[place - 1] + 1
            here = place
