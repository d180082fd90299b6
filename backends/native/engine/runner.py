"""Runs a step's work through the model and returns the wanted logits.

`PackedRunner` is the fast tier: the tokens of all sequences in one row, attention over the paged cache. The slow tier
is in `cache_runner`. A runner keeps nothing between steps that it could not rebuild from a sequence's tokens and
blocks.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence as Seq
from typing import Any, Protocol

import torch
from torch import Tensor

from backends.native.engine.attention import NAME, AttentionMetadata, Forward, Kernel, running
from backends.native.engine.kv_cache import KVCache
from backends.native.engine.reference import reference_kernel
from backends.native.engine.sequence import Sequence, Work
from backends.native.multimodal.embedder import Embedder


class Runner(Protocol):
    """How the engine runs its model."""

    tier: str
    """Its name, for the log and for `Ready`."""
    chunked: bool
    """Whether a prompt may be run in pieces."""
    images: bool
    """Whether prompts may hold pictures."""

    def run(self, works: Seq[Work]) -> Tensor:
        """[rows, vocabulary] logits: for each work in turn, its `rows`.

        May be called again with a part of the same works if it raised.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence ended or was preempted."""
        ...


class PackedRunner:
    """Many sequences in one `[1, tokens]` forward over a paged cache.

    Args:
        model: a causal language model of transformers with an attention interface; its decoder is set to ours.
        embedder: puts pictures in, if it takes any.
    """

    tier = "packed"
    chunked = True

    def __init__(
        self, model: Any, cache: KVCache, kernel: Kernel = reference_kernel, embedder: Embedder | None = None
    ) -> None:
        model.get_decoder().set_attn_implementation(NAME)
        self._model = model
        self.cache = cache
        self._kernel = kernel
        self._device = model.device
        self._embedder = embedder
        self.images = embedder is not None
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def run(self, works: Seq[Work]) -> Tensor:
        """See `Runner`."""
        ids = [token for work in works for token in work.tokens]
        rows = torch.tensor(wanted_rows(works), dtype=torch.long, device=self._device)
        extra = {"logits_to_keep": rows} if self._keeps else {}
        with running(Forward(self.cache, self._metadata(works), self._kernel)):
            logits: Tensor = self._model(
                **self._inputs(torch.tensor([ids], device=self._device), works),
                position_ids=self._positions(works),
                use_cache=False,
                **extra,
            ).logits[0]
        return logits if self._keeps else logits[rows]

    def _inputs(self, ids: Tensor, works: Seq[Work]) -> dict[str, Tensor]:
        embeds = self._embedder.embed(ids, works) if self._embedder is not None else None
        return {"input_ids": ids} if embeds is None else {"inputs_embeds": embeds}

    def _positions(self, works: Seq[Work]) -> Tensor:
        """[1, tokens], or [3, 1, tokens] for pictures whose model wants it so."""
        found = self._embedder.positions(works) if self._embedder is not None else None
        if found is not None:
            return found
        positions = [position for work in works for position in range(work.start, work.start + work.count)]
        return torch.tensor([positions], device=self._device)

    def forget(self, sequence: Sequence) -> None:
        """Its blocks are all there was, but for what pictures left."""
        if self._embedder is not None:
            self._embedder.forget(sequence)

    def _metadata(self, works: Seq[Work]) -> AttentionMetadata:
        size = self.cache.block_size
        slots = [
            work.sequence.blocks[position // size] * size + position % size
            for work in works
            for position in range(work.start, work.start + work.count)
        ]
        ends = [work.start + work.count for work in works]
        most = -(-max(ends) // size)
        tables = [(work.sequence.blocks + [0] * most)[:most] for work in works]
        return AttentionMetadata(
            slots=torch.tensor(slots, device=self._device),
            query_lengths=[work.count for work in works],
            context_lengths=ends,
            block_tables=torch.tensor(tables, device=self._device),
        )


def wanted_rows(works: Seq[Work]) -> list[int]:
    """The positions in the pack whose logits are wanted."""
    rows: list[int] = []
    first = 0
    for work in works:
        rows += [first + row for row in work.rows]
        first += work.count
    return rows
