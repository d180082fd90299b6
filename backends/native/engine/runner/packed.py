"""Runners: a step's work through the model, to the logits that are wanted.

`PackedRunner` is the packed execution path: the tokens of all sequences in one row, attention over the paged cache. The
per-sequence path is in `per_sequence`. Whatever a runner keeps between steps can be rebuilt from a sequence's tokens
and blocks.
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import Any, Protocol

from torch import Tensor

from backends.native.engine.attention.adapted import adapt_attention
from backends.native.engine.attention.interface import (
    NAME,
    AttentionMetadata,
    Forward,
    Kernel,
    running,
    text_part,
)
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.attention.registry import best_kernel
from backends.native.engine.devices import send
from backends.native.engine.lora.layers import adapting
from backends.native.engine.runner.embedder import Embedder
from backends.native.engine.scheduling.sequence import Sequence, StateSnapshots, Work
from backends.native.engine.state.mixers import separate_sequences
from backends.native.engine.state.pool import StatePool
from backends.native.engine.state.step import grouped, groups_of


class Runner(Protocol):
    """How the engine runs its model."""

    execution_path: str
    """`packed` or `per_sequence`, for the log and for `Ready`."""
    chunked: bool
    """Whether a prompt may be run in chunks."""
    speculates: bool
    """Whether tokens that were run may be run again with others in their places, as rejected drafts are."""
    image_tokens: int
    """The most tokens of one image in a prompt; 0: prompts hold no images."""
    lora_adapters: tuple[str, ...]
    """Names of the LoRA adapters that a sequence may ask for."""

    @property
    def states(self) -> StateSnapshots | None:
        """The recurrent states beside the paged cache; None: the model has none, or the runner keeps them otherwise."""
        ...

    def run(self, works: Seq[Work]) -> Tensor:
        """Run the works' tokens.

        If it raised, it may be called again with some of the same works.

        Returns:
            [rows, vocabulary] logits: of each work in turn, the `wanted` last rows.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a sequence that ended or was preempted."""
        ...

    def sleep(self) -> None:
        """Free the cache; there must be no sequences."""
        ...

    def wake(self) -> None:
        """Make the cache anew."""
        ...


class PackedRunner:
    """Many sequences in one `[1, tokens]` forward over a paged cache.

    Args:
        model: a causal language model of transformers with an attention interface; its decoder's is set to ours.
        cache: the keys and values.
        kernel: how attention is computed.
        embedder: makes input embeddings of images; None: the model takes none.
        lora_adapters: names of the LoRA adapters in the model.
        snapshots: the most snapshots of recurrent state that are kept.
    """

    execution_path = "packed"
    chunked = True

    def __init__(
        self,
        model: Any,
        cache: KVCache,
        kernel: Kernel = best_kernel,
        embedder: Embedder | None = None,
        lora_adapters: tuple[str, ...] = (),
        snapshots: int = 0,
    ) -> None:
        # Only the decoder's: towers for images keep the attention that they were loaded with, which has no KV cache.
        text_part(model).set_attn_implementation(NAME)
        adapt_attention(text_part(model))
        self._model = model
        self.cache = cache
        self._blocks = cache.blocks
        self.states = StatePool(cache.block_size, snapshots) if separate_sequences(text_part(model)) else None
        # A recurrent state cannot go back to where a draft was wrong.
        self.speculates = self.states is None
        self._kernel = kernel
        self._device = model.device
        self._embedder = embedder
        self.image_tokens = embedder.worst.length if embedder is not None and embedder.worst is not None else 0
        self.lora_adapters = lora_adapters
        self._selects_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def run(self, works: Seq[Work]) -> Tensor:
        """See `Runner`."""
        if self.states is None:
            return self._run(works)
        for work in works:
            # After a step that failed: its sequences have blocks, but no state.
            before = self.states.lacking(work)
            if before is not None:
                self._run_with_states([before], self.states)
        return self._run_with_states(works, self.states)

    def _run_with_states(self, works: Seq[Work], states: StatePool) -> Tensor:
        states.begin(works)
        with grouped(groups_of(works, states, self._device)):
            logits = self._run(works)
        states.commit(works)
        return logits

    def _run(self, works: Seq[Work]) -> Tensor:
        tokens, rows, metadata = self._inputs(works)
        places = metadata.positions
        assert places is not None
        # The output layer is run for the wanted rows only: for a prompt of 1,000 tokens that is one row of a vocabulary
        # instead of 1,000.
        extra = {"logits_to_keep": rows} if self._selects_rows else {}
        with running(Forward(self.cache, metadata, self._kernel)), adapting(works):
            logits: Tensor = self._model(
                **self._embedded(tokens.unsqueeze(0), works),
                position_ids=self._positions(places, works),
                use_cache=False,
                **extra,
            ).logits[0]
        return logits if self._selects_rows else logits[rows]

    def _embedded(self, ids: Tensor, works: Seq[Work]) -> dict[str, Tensor]:
        embeds = self._embedder.embed(ids, works) if self._embedder is not None else None
        # Never both: models of transformers refuse ids together with embeddings.
        return {"input_ids": ids} if embeds is None else {"inputs_embeds": embeds}

    def _positions(self, places: Tensor, works: Seq[Work]) -> Tensor:
        """[1, tokens]; [3, 1, tokens] for a model that gives images positions in time, height and width."""
        found = self._embedder.positions(works) if self._embedder is not None else None
        return places.unsqueeze(0) if found is None else found

    def forget(self, sequence: Sequence) -> None:
        """See `Runner`: beside blocks there are the positions of images and recurrent states."""
        if self.states is not None:
            self.states.forget(sequence)
        if self._embedder is not None:
            self._embedder.forget(sequence)

    def sleep(self) -> None:
        """See `Runner`."""
        self.cache = self.cache.resized(0)

    def wake(self) -> None:
        """See `Runner`."""
        self.cache = self.cache.resized(self._blocks)

    def _inputs(self, works: Seq[Work]) -> tuple[Tensor, Tensor, AttentionMetadata]:
        """The pack's tokens, the rows of it whose logits are wanted, and where the tokens belong."""
        size = self.cache.block_size
        ids, positions = _tokens_and_positions(works)
        counts, ends, blocks = _attending(works)
        width = -(-max(ends) // size)
        lengths_sent: list[array[int]] = []
        # Kernels of accelerators read lengths on the device; those of CPUs read the lists. Shapes of a step of so many
        # sequences stay the same until the longest context has doubled.
        if self._device.type != "cpu":
            width = 1 << (width - 1).bit_length()
            lengths_sent = [array("q", accumulate(counts, initial=0)), array("q", ends)]
        arrays = [ids, positions, wanted_rows(works), _slots(works, size), _block_tables(blocks, width), *lengths_sent]
        tokens, places, rows, slots, tables, *lengths = send(self._device, *arrays)
        starts, contexts = lengths or (None, None)
        tables = tables.view(len(blocks), -1)
        return (
            tokens,
            rows,
            AttentionMetadata(
                slots, counts, ends, tables, positions=places, device_starts=starts, device_contexts=contexts
            ),
        )


def _tokens_and_positions(works: Seq[Work]) -> tuple[array[int], array[int]]:
    """The pack's tokens and their positions in their sequences."""
    # Steady decode: one token each, without an `extend` for each sequence.
    if all(work.count == 1 for work in works):
        return array("q", [work.sequence.tokens[work.start] for work in works]), array("q", [w.start for w in works])
    ids, positions = array("q"), array("q")
    for work in works:
        ids.extend(work.tokens)
        positions.extend(range(work.start, work.start + work.count))
    return ids, positions


def _attending(works: Seq[Work]) -> tuple[list[int], list[int], list[array[int]]]:
    """Tokens in the step, tokens up to its end, and blocks, of all that attends as one sequence.

    Each token of a work with drafts is a sequence in decode of its own. All keys and values of a step are stored before
    attention, so a draft sees those before it, by the same kernel as in a step of its own.
    """
    counts: list[int] = []
    ends: list[int] = []
    blocks: list[array[int]] = []
    for work in works:
        end = work.start + work.count
        own = range(work.start + 1, end + 1) if work.drafts else (end,)
        ends.extend(own)
        counts.extend([1] * len(own) if work.drafts else [work.count])
        blocks.extend([work.sequence.blocks] * len(own))
    return counts, ends, blocks


def _slots(works: Seq[Work], size: int) -> array[int]:
    """Of each token of the pack, the slot in the cache: its block by its position, and its place in the block."""
    if all(work.count == 1 for work in works):
        return array("q", [work.sequence.blocks[work.start // size] * size + work.start % size for work in works])
    slots = array("q")
    for work in works:
        end = work.start + work.count
        for index in range(work.start // size, -(-end // size)):
            # The tokens of the work that lie in this block.
            first, last = max(work.start, index * size), min(end, (index + 1) * size)
            moved = (work.sequence.blocks[index] - index) * size
            slots.extend(range(first + moved, last + moved))
    return slots


def _block_tables(every: Seq[array[int]], width: int) -> array[int]:
    """[sequences * width], each one's blocks, padded with block 0."""
    # Arrays of 64-bit integers: `extend` copies whole tables in C, where a list of lists would be converted number by
    # number.
    padding = array("q", bytes(8 * width))
    tables = array("q")
    for blocks in every:
        lacking = width - len(blocks)
        # A sequence may hold more blocks than the longest one of this step needs: a prompt has all its blocks from its
        # admission on, and is run in chunks.
        tables.extend(blocks if lacking >= 0 else blocks[:width])
        if lacking > 0:
            tables.extend(padding[:lacking])
    return tables


def wanted_rows(works: Seq[Work]) -> array[int]:
    """The rows of the pack whose logits are wanted."""
    # Steady decode: every row is wanted.
    if all(work.count == 1 and work.samples for work in works):
        return array("q", range(len(works)))
    rows = array("q")
    end = 0
    for work in works:
        end += work.count
        # Wanted rows are the last of a work: the row of its last token predicts the next one. 0 rows: a chunk before
        # the end of its prompt.
        if work.wanted == 1:
            rows.append(end - 1)
        else:
            rows.extend(range(end - work.wanted, end))
    return rows
