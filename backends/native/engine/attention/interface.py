"""Attention over the paged cache, as transformers' models call it.

A model whose attention implementation is set to `NAME` calls `attend` in every layer with the queries, keys and values
of the packed step; `attend` stores the new keys and values and calls the step's kernel. What the kernel needs beside
them is in a `Forward`, a context variable that the runner sets by `running(...)`: models need not pass anything on.
Kernels stand in `registry`; `reference` is the one that all others must equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

from torch import Tensor
from transformers import AttentionInterface

from backends.native.engine.attention.kv_cache import KVCache, LayerCache, LayerKey
from backends.native.engine.attention.progress import report_progress

NAME = "interlingua_paged"
"""The attention implementation's name in transformers."""


@dataclass(slots=True, eq=False)
class AttentionMetadata:
    """Where the tokens of a packed step belong.

    Attributes:
        slots: [tokens] int64, the cache slot for each token's keys and values.
        query_lengths: tokens of each sequence in this step; the pack holds them one sequence after the other.
        context_lengths: tokens of each sequence up to the end of this step.
        block_tables: [sequences, most blocks] int64, padded with block 0.
        plans: what kernels compute in the first layer and reuse in the others; each kernel has its own keys.
        calls: how often each layer has attended in this step.
        positions: [tokens], each token's index in its sequence; for modules that count positions themselves.
        device_starts: [sequences + 1] int64, `starts` and the number of tokens, for kernels of accelerators; None on a
            CPU.
        device_contexts: [sequences] int64, `context_lengths`, likewise.
        last_keys: by the index of a sequence, of those whose tokens do not all see themselves last: [its tokens in the
            step] int64 on the CPU, the position of the last key that each of them sees.
    """

    slots: Tensor
    query_lengths: list[int]
    context_lengths: list[int]
    block_tables: Tensor
    plans: dict[Any, Any] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    positions: Tensor | None = None
    device_starts: Tensor | None = None
    device_contexts: Tensor | None = None
    last_keys: dict[int, Tensor] = field(default_factory=dict)

    @property
    def starts(self) -> list[int]:
        """Where each sequence's tokens begin in the pack."""
        return list(accumulate(self.query_lengths[:-1], initial=0))


@dataclass(slots=True, frozen=True)
class AttentionParams:
    """How one layer attends.

    Attributes:
        scale: the factor of the scores.
        sliding_window: a token sees itself and the `sliding_window - 1` tokens before it; None: all before it.
        softcap: scores become `softcap * tanh(score / softcap)`.
        sinks: [query heads], a learned score that takes part in the softmax and has no value (gpt-oss).
        alibi: [query heads], what a score grows by with each position of its key (ALiBi, arXiv 2108.12409).
        chunk: a token sees those before it whose index divided by `chunk` is the same (Llama 4).
    """

    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    alibi: Tensor | None = None
    chunk: int | None = None

    @property
    def has_plain_scores(self) -> bool:
        """Whether a score is a scaled product and nothing else."""
        return self.softcap is None and self.sinks is None and self.alibi is None

    @property
    def is_plain(self) -> bool:
        """Whether there are plain scores and no chunks."""
        return self.has_plain_scores and self.chunk is None


class Kernel(Protocol):
    """Attention of packed queries over the pages of their sequences: causal, or as far as `metadata.last_keys` says.

    A kernel changes none of its arguments but `metadata.plans`.
    """

    def __call__(
        self, queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
    ) -> Tensor:
        """[tokens, query heads, key width] to [tokens, query heads, value width]."""
        ...


@dataclass(slots=True, eq=False, frozen=True)
class Forward:
    """What attention needs beside a layer's own tensors, for one forward pass."""

    cache: KVCache
    metadata: AttentionMetadata
    kernel: Kernel


_current: ContextVar[Forward] = ContextVar("interlingua_forward")


def current() -> Forward:
    """The forward pass that runs in this context."""
    return _current.get()


def step_metadata() -> AttentionMetadata | None:
    """The metadata of the forward pass that runs in this context; None outside of a step."""
    forward = _current.get(None)
    return None if forward is None else forward.metadata


@contextmanager
def running(forward: Forward) -> Iterator[None]:
    """Make `forward` the current one, for models called inside."""
    token = _current.set(forward)
    try:
        yield
    finally:
        _current.reset(token)


def attend(  # noqa: PLR0913 - transformers' arguments
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - always None: see below
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    alibi: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: [1, heads, tokens, width] each, to [1, tokens, heads, width]."""
    # Before the layer's work: pings are answered here, once a layer, however long the step takes.
    report_progress()
    forward = current()
    # The batch dimension is 1: a packed step is one row. Transposed to one row a token, as slots are.
    keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    layer = forward.cache.layer(_layer_key(module.layer_idx, forward.metadata), keys, values)
    # Before the kernel: new tokens attend to themselves and to each other through the cache, like to all earlier ones.
    layer.write(forward.metadata.slots, keys, values)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # A window of 0 means none, as None does. `s_aux` is transformers' name for gpt-oss' sinks.
    chunk = chunk_of(module)
    if chunk is not None and query.device.type == "cpu" and max(forward.metadata.context_lengths) <= chunk:
        chunk = None  # every sequence is within its first chunk: the kernel that knows no chunks may run
    params = AttentionParams(scale, sliding_window or None, softcap, s_aux, alibi, chunk)
    queries = query[0].transpose(0, 1)
    return forward.kernel(queries, layer, forward.cache.block_size, forward.metadata, params).unsqueeze(0), None


def chunk_of(module: Any) -> int | None:
    """The tokens of a chunk, if a module attends within chunks; not an argument of transformers' interface."""
    config = getattr(module, "config", None)
    size: int | None = getattr(config, "attention_chunk_size", None)
    if size is None or config is None:
        return None
    return size if config.layer_types[module.layer_idx] == "chunked_attention" else None


def _layer_key(index: int, metadata: AttentionMetadata) -> LayerKey:
    """Whose pools a call reads and writes: blocks that stand in several places (Zamba) have a call for each of them."""
    calls = metadata.calls[index] = metadata.calls.get(index, -1) + 1
    return (index, calls) if calls else index


def text_part(model: Any) -> Any:
    """The text decoder of a causal or composite model, whose attention is ours; not its towers for images or audio."""
    decoder = model.get_decoder()
    return decoder if hasattr(decoder, "set_attn_implementation") else model


# Registered for the process at import; a model uses it after `set_attn_implementation(NAME)`. No function for masks is
# registered, so transformers makes none: `AttentionMetadata` says which keys a query sees. With one, it would look for
# packed sequences in the positions first, and wait for the device.
AttentionInterface.register(NAME, attend)
