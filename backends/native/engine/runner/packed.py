"""Runners: a step's work through the model, to the logits that are wanted.

`PackedRunner` is the packed execution path: the tokens of all sequences in one row, attention over the paged cache. The
per-sequence path is in `per_sequence`. Whatever a runner keeps between steps can be rebuilt from a sequence's tokens
and blocks.
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import Any, Protocol

from torch import Tensor

from backends.native.engine.attention.adapted import adapt_attention
from backends.native.engine.attention.interface import (
    NAME,
    AttentionMetadata,
    AttentionParams,
    Forward,
    Kernel,
    running,
    text_part,
)
from backends.native.engine.attention.kv_cache import KVCache, LayerCache
from backends.native.engine.attention.registry import best_kernel
from backends.native.engine.devices import ExtraArrays, send
from backends.native.engine.lora.layers import adapting
from backends.native.engine.lora.slots import LoraSlots
from backends.native.engine.runner.embedder import Embedder
from backends.native.engine.runner.graphs import DecodeGraphs, DecodeInputs
from backends.native.engine.runner.last_keys import last_keys
from backends.native.engine.runner.pack import Pack, pack_of, table_width
from backends.native.engine.runner.swap_space import SwapSpace
from backends.native.engine.scheduling.sequence import Sequence, StateSnapshots, Work
from backends.native.engine.state.mixers import separate_sequences
from backends.native.engine.state.pool import StatePool
from backends.native.engine.state.step import grouped, groups_of
from backends.native.protocol.messages import Unchunked


class Runner(Protocol):
    """How the engine runs its model."""

    execution_path: str
    """`packed` or `per_sequence`, for the log and for `Ready`."""
    speculates: bool
    """Whether tokens that were run may be run again with others in their places, as rejected drafts are."""
    overlaps: bool
    """Whether it runs tokens that are on the device only (`ExtraArrays.unread`), and keeps nothing that a step which
    turns out to be one too many would spoil."""
    image_tokens: int
    """The most tokens of one image in a prompt; 0: prompts hold no images."""
    unchunked: Unchunked
    """What of a prompt must be run in one step."""
    lora_adapters: tuple[str, ...]
    """Names of the LoRA adapters that a sequence may ask for."""

    @property
    def states(self) -> StateSnapshots | None:
        """The recurrent states beside the paged cache; None: the model has none, or the runner keeps them otherwise."""
        ...

    @property
    def swap(self) -> SwapSpace | None:
        """Where preempted sequences keep what they have computed; None: nowhere."""
        ...

    @property
    def takes_extra(self) -> bool:
        """Whether it sends its inputs to a device, and other arrays with them."""
        ...

    def run(self, works: Seq[Work], extra: ExtraArrays | None = None) -> Tensor:
        """Run the works' tokens.

        If it raised, it may be called again with some of the same works.

        Args:
            works: what to run.
            extra: arrays to send to the device with them, if it `takes_extra`.

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

    def lora_adapters_changed(self) -> None:
        """Take notice of LoRA adapters that the model has by now."""
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
        lora_slots: the model's, for graphs.
    """

    execution_path = "packed"

    def __init__(
        self,
        model: Any,
        cache: KVCache,
        kernel: Kernel = best_kernel,
        embedder: Embedder | None = None,
        lora_adapters: tuple[str, ...] = (),
        snapshots: int = 0,
        lora_slots: LoraSlots | None = None,
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
        self.overlaps = self.takes_extra and self.states is None
        self._embedder = embedder
        self.image_tokens = embedder.worst.length if embedder is not None and embedder.worst is not None else 0
        self.unchunked: Unchunked = embedder.unchunked if embedder is not None else "nothing"
        self.lora_adapters = lora_adapters
        self._selects_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.swap: SwapSpace | None = None
        self._graphs: DecodeGraphs | None = None
        self._lora_slots = lora_slots or LoraSlots(model)

    def capture_graphs(self, sequences: int, context: int) -> None:
        """Capture decode steps of up to so many sequences of up to `context` tokens, if they can be.

        The cache must have a spare block, to which padding rows write.
        """
        if self.states is None:
            size = self.cache.block_size
            width = table_width(context, size, doubling=True)
            self._graphs = DecodeGraphs(self._decode_logits, self._device, size, self.cache.blocks, sequences, width)
            self._capture(self._graphs)

    def lora_adapters_changed(self) -> None:
        """See `Runner`: graphs are captured anew if shapes have changed."""
        # Not while asleep: they are captured at the wake-up.
        if self._graphs is not None and self._lora_slots.reserve() and self.cache.blocks:
            self._capture_lora(self._graphs)

    def _capture(self, graphs: DecodeGraphs) -> None:
        graphs.capture()
        self._capture_lora(graphs)

    def _capture_lora(self, graphs: DecodeGraphs) -> None:
        if not graphs.capture_lora(self._lora_slots.count):
            self._lora_slots.release()

    @property
    def takes_extra(self) -> bool:
        """See `Runner`."""
        return bool(self._device.type != "cpu")

    def run(self, works: Seq[Work], extra: ExtraArrays | None = None) -> Tensor:
        """See `Runner`."""
        if self.states is None:
            return self._run(works, extra)
        for work in works:
            # After a step that failed: its sequences have blocks, but no state.
            before = self.states.lacking(work)
            if before is not None:
                self._run_with_states([before], self.states)
        return self._run_with_states(works, self.states, extra)

    def _run_with_states(self, works: Seq[Work], states: StatePool, extra: ExtraArrays | None = None) -> Tensor:
        states.begin(works)
        with grouped(groups_of(works, states, self._device)):
            logits = self._run(works, extra)
        states.commit(works)
        return logits

    def _run(self, works: Seq[Work], extra: ExtraArrays | None) -> Tensor:
        # Kernels of accelerators run on shapes that stay the same until the longest context has doubled.
        pack = pack_of(works, self.cache.block_size, doubling=self._device.type != "cpu")
        if self._graphs is not None and _is_plain_decode(works):
            slots = self._slots_of(works)
            logits = None if slots is None else self._graphs.run(self._decode_inputs(pack, works, slots), extra)
            if logits is not None:
                return logits
        with adapting(works):
            return self.run_pack(pack, works, extra)

    def _slots_of(self, works: Seq[Work]) -> array[int] | None:
        """The slot of each work's LoRA adapter; empty: none has one. None: not all of them are in slots."""
        names = [work.sequence.request.lora_adapter for work in works]
        return self._lora_slots.place(names) if any(names) else array("q")

    def run_pack(self, pack: Pack, works: Seq[Work] = (), extra: ExtraArrays | None = None) -> Tensor:
        """The logits of a packed step.

        Args:
            pack: the step.
            works: those that it packs, for a model that takes images.
            extra: arrays to send to the device with them.
        """
        tokens, rows, metadata = self._sent(pack, works, extra)
        assert metadata.positions is not None
        return self._logits(tokens, rows, metadata, self._positions(metadata.positions, works), works)

    def run_beside(self, pack: Pack, forward: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Run a layer that is not the model's over pages of its cache; it attends for the wanted rows alone.

        Args:
            pack: the step; each of its wanted rows attends as a sequence with one token in the step.
            forward: takes [tokens] ids, [tokens] positions and [wanted] rows; returns [tokens, width], of which only
                the wanted rows count.

        Returns:
            [wanted rows, width].
        """
        tokens, rows, metadata = self._sent(pack, (), None)
        assert metadata.positions is not None

        def attend(
            queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
        ) -> Tensor:
            attended = self._kernel(queries.index_select(0, rows), cache, block_size, metadata, params)
            # Not empty: a row that is not wanted passes the rest of the layer, too.
            return attended.new_zeros(len(queries), *attended.shape[1:]).index_copy_(0, rows, attended)

        with running(Forward(self.cache, metadata, self._kernel if len(rows) == len(tokens) else attend)):
            return forward(tokens, metadata.positions, rows)[rows]

    def _logits(
        self, tokens: Tensor, rows: Tensor, metadata: AttentionMetadata, positions: Tensor, works: Seq[Work] = ()
    ) -> Tensor:
        """The logits of wanted rows.

        Args:
            tokens: [tokens].
            rows: the wanted ones.
            metadata: where the tokens belong.
            positions: [tokens], or [3, tokens] for a model that gives images positions in time, height and width.
            works: for images.
        """
        # The output layer is run for the wanted rows only: for a prompt of 1,000 tokens that is one row of a vocabulary
        # instead of 1,000.
        extra = {"logits_to_keep": rows} if self._selects_rows else {}
        with running(Forward(self.cache, metadata, self._kernel)):
            logits: Tensor = self._model(
                **self._embedded(tokens.unsqueeze(0), works),
                position_ids=positions.unsqueeze(-2),
                use_cache=False,
                **extra,
            ).logits[0]
        return logits if self._selects_rows else logits[rows]

    def _decode_logits(
        self, tokens: Tensor, rows: Tensor, metadata: AttentionMetadata, positions: Tensor, lora: Tensor | None
    ) -> Tensor:
        """Implements `graphs.Forward`."""
        if lora is None:
            return self._logits(tokens, rows, metadata, positions)
        with self._lora_slots.adapting(lora):
            return self._logits(tokens, rows, metadata, positions)

    def _embedded(self, ids: Tensor, works: Seq[Work]) -> dict[str, Tensor]:
        embeds = self._embedder.embed(ids, works) if self._embedder is not None else None
        # Never both: models of transformers refuse ids together with embeddings.
        return {"input_ids": ids} if embeds is None else {"inputs_embeds": embeds}

    def _positions(self, places: Tensor, works: Seq[Work]) -> Tensor:
        found = self._embedder.positions(works) if self._embedder is not None else None
        return places if found is None else found

    def forget(self, sequence: Sequence) -> None:
        """See `Runner`: beside blocks there are the positions of images and recurrent states."""
        if self.states is not None:
            self.states.forget(sequence)
        if self._embedder is not None:
            self._embedder.forget(sequence)

    def sleep(self) -> None:
        """See `Runner`."""
        if self._graphs is not None:
            self._graphs.forget()  # they hold addresses in the cache
        self._replace_cache(self.cache.resized(0))

    def wake(self) -> None:
        """See `Runner`."""
        self._replace_cache(self.cache.resized(self._blocks))
        if self._graphs is not None:
            self._capture(self._graphs)

    def _replace_cache(self, cache: KVCache) -> None:
        self.cache = cache
        if self.swap is not None:
            self.swap.attach(cache)

    def _decode_inputs(self, pack: Pack, works: Seq[Work], lora: array[int]) -> DecodeInputs:
        positions = self._embedder.decode_positions(works) if self._embedder is not None else pack.positions
        width = len(pack.tables) // len(pack.ends)
        return DecodeInputs(pack.ids, pack.positions, positions, pack.slots, pack.ends, pack.tables, width, lora)

    def _sent(
        self, pack: Pack, works: Seq[Work], extra: ExtraArrays | None
    ) -> tuple[Tensor, Tensor, AttentionMetadata]:
        """The pack's tokens, the rows of it whose logits are wanted, and where the tokens belong, on the device."""
        counts, ends = pack.counts.tolist(), pack.ends.tolist()
        lengths_sent: list[array[int]] = []
        # Kernels of accelerators read lengths on the device; those of CPUs read the lists.
        if self._device.type != "cpu":
            lengths_sent = [array("q", accumulate(counts, initial=0)), pack.ends]
        arrays = [pack.ids, pack.positions, pack.rows, pack.slots, pack.tables, *lengths_sent]
        others = extra.arrays if extra is not None else ()
        sent = send(self._device, *arrays, *others)
        tokens, places, rows, slots, tables, *lengths = sent[: len(arrays)]
        if extra is not None:
            extra.sent = sent[len(arrays) :]
            extra.fill_in(tokens)
        starts, contexts = lengths or (None, None)
        tables = tables.view(len(counts), -1)
        return (
            tokens,
            rows,
            AttentionMetadata(
                slots,
                counts,
                ends,
                tables,
                positions=places,
                device_starts=starts,
                device_contexts=contexts,
                last_keys=last_keys(works, self.unchunked) if self.unchunked != "nothing" else {},
            ),
        )


def _is_plain_decode(works: Seq[Work]) -> bool:
    """Whether a step may be replayed from a graph: a token of each sequence, and nothing that needs more."""
    return bool(works) and all(work.count == 1 and work.samples and _is_plain(work) for work in works)


def _is_plain(work: Work) -> bool:
    request = work.sequence.request
    # The hook that collects embeddings is not called in a replay.
    if work.drafts or request.pool:
        return False
    return not request.features or work.start >= len(request.prompt)
