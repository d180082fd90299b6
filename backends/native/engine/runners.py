"""Runners whose caches fit into the memory that a loaded model leaves.

The KV cache gets a share of what the worst step leaves (`worst_step`).
"""

from __future__ import annotations

import structlog
import torch
from msgspec import structs

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.devices import OUT_OF_MEMORY, can_pin, free_memory, release_memory
from backends.native.engine.errors import LoadError
from backends.native.engine.loading.mtp import MtpLayer
from backends.native.engine.loading.stacking_check import find_stacking
from backends.native.engine.loading.weights import LoadedModel
from backends.native.engine.lora.slots import LoraSlots
from backends.native.engine.multimodal.profiling import find_processor, make_embedder
from backends.native.engine.parallel.gang import Gang, LeadingGang
from backends.native.engine.parallel.runner import LeadingRunner
from backends.native.engine.runner.cache_sizes import CacheSizes
from backends.native.engine.runner.embedder import Embedder
from backends.native.engine.runner.graphs import are_wanted
from backends.native.engine.runner.pack import pack_of
from backends.native.engine.runner.packed import PackedRunner, Runner
from backends.native.engine.runner.per_sequence import PerSequenceRunner
from backends.native.engine.runner.swap_space import SwapSpace
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.worst_step import step_memory
from backends.native.machine import available_memory
from backends.native.multimodal.processing import NotServed
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Submit

log = structlog.get_logger()

# Default size of the KV cache: at most this share of the memory that is free once the model is loaded ...
_GPU_SHARE = 0.85
_CPU_SHARE = 0.25
# ... and on a CPU, whose memory other processes need too, at most this many bytes.
_CPU_MAX_BYTES = 8 * 1024**3
# At most this share of the host's memory is for preempted sequences of an accelerator.
_SWAP_SHARE = 0.5
# Tokens of all sequences together on the per-sequence path, whose bytes per token are unknown before they are run.
_PER_SEQUENCE_TOKENS = 65_536


def context_of(loaded: LoadedModel, options: EngineOptions) -> int:
    """The most tokens of a sequence: the model's context, or what the options shorten it to."""
    return min(options.context_length or loaded.context_length, loaded.context_length)


def step_tokens_of(options: EngineOptions, runner: Runner, context: int) -> int:
    """The most tokens of a step: room for what cannot be cut, and for a token of every other sequence."""
    longest = {"nothing": 0, "image": runner.image_tokens, "prompt": context}[runner.unchunked]
    return max(options.step_tokens, longest + options.max_sequences)


def _wanted_blocks(loaded: LoadedModel, options: EngineOptions) -> int:
    """How many blocks `max_sequences` sequences need, each as long as the context; or those of `kv_tokens`."""
    tokens = options.kv_tokens or options.max_sequences * context_of(loaded, options)
    return -(-tokens // options.block_size)


def probe_runner(
    loaded: LoadedModel, options: EngineOptions, gang: Gang | None = None, mtp: MtpLayer | None = None
) -> PackedRunner:
    """A runner over a KV cache of one block that has run a step, from which the bytes of a block are known."""
    # Padding rows of graphs write to a block behind the scheduler's. Over several ranks a replay would reach only one.
    spare = int(gang is None and are_wanted(loaded.model.device))
    first = KVCache(1, options.block_size, spare, in_8_bits=options.kv_cache_dtype == "int8")
    probe = PackedRunner(loaded.model, first)
    # The content does not matter: the probe makes each layer's pools, whose shapes are known only from the first keys.
    prompt = (0,) * min(2, options.block_size)  # two tokens: enough to compile and run the prefill kernel, too
    sequence = Sequence(0, Submit(0, prompt, 1), 0)
    sequence.blocks.append(0)
    work = Work(sequence, 0, len(prompt), samples=True)
    probe.run([work])
    if mtp is not None:
        states = torch.zeros(
            len(prompt), loaded.config.hidden_size, dtype=loaded.model.dtype, device=loaded.model.device
        )
        mtp.run(probe, pack_of([work], options.block_size, doubling=True), states)
    return probe


def packed_runner(
    loaded: LoadedModel,
    options: EngineOptions,
    gang: Gang | None = None,
    beside: int = 0,
    mtp: MtpLayer | None = None,
) -> tuple[PackedRunner, CacheSizes]:
    """A runner over the KV cache, and what the cache holds.

    Args:
        loaded: the model, or this rank's share of it.
        options: the engine's.
        gang: the other ranks; None: there are none.
        beside: bytes that another model needs for each block of this one.
        mtp: the layer that writes drafts, which has its keys and values in the same cache; None: there is none.

    Raises:
        LoadError: no cache fits into the memory, or images cannot be served.
    """
    probe = probe_runner(loaded, options, gang, mtp)
    lora_slots = LoraSlots(loaded.model)
    if probe.cache.spare_blocks and probe.states is None:
        lora_slots.reserve()  # before the cache takes what is left
    embedder = None if options.text_only or gang is not None else _embedder(loaded, options)
    step_bytes = _step_bytes(loaded, probe, embedder, options)
    wanted = CacheSizes(_wanted_blocks(loaded, options), options.max_sequences)
    on_cpu = loaded.model.device.type == "cpu"  # whose memory all ranks share
    sharers = options.replica_count * (options.tensor_parallel if on_cpu else 1)
    affordable = wanted.within(_cache_bytes(loaded.model.device, step_bytes, sharers), probe, beside)
    if gang is not None:  # the same blocks on each rank
        affordable = structs.replace(affordable, blocks=gang.least(affordable.blocks))
    # On a CPU an operator's `kv_tokens` may exceed what is affordable, which is a cautious share of the memory. On a
    # GPU that share is nearly all there is, so more is an error.
    sizes = structs.replace(affordable, blocks=wanted.blocks) if options.kv_tokens else affordable
    if min(sizes.blocks, sizes.sequences) < 1 or (sizes.blocks > affordable.blocks and not on_cpu):
        raise LoadError(f"The KV cache does not fit into the memory that the model leaves of {loaded.model.device}.")
    # `resized` makes new pools: the probe's are freed with the probe.
    cache, names = probe.cache.resized(sizes.blocks), tuple(options.lora_adapters)
    if isinstance(gang, LeadingGang):
        return LeadingRunner(loaded.model, cache, gang), sizes
    runner = PackedRunner(
        loaded.model,
        cache,
        embedder=embedder,
        lora_adapters=names,
        snapshots=sizes.snapshots,
        lora_slots=lora_slots,
    )
    if can_pin(loaded.model.device):  # on a CPU it would be no other memory than the cache's
        runner.swap = _swap_space(runner, probe, sizes, options)
    return runner, sizes


def _swap_space(
    runner: PackedRunner, probe: PackedRunner, on_device: CacheSizes, options: EngineOptions
) -> SwapSpace | None:
    """Memory of the host for preempted sequences; None: there is none."""
    memory = min(options.swap_space * 1024**3, available_memory() * _SWAP_SHARE / options.replica_count)
    sizes = on_device.within(int(memory), probe)
    if min(sizes.blocks, sizes.sequences) < 1:
        return None
    try:
        return SwapSpace(runner.cache, runner.states, sizes.blocks, sizes.sequences)
    except (*OUT_OF_MEMORY, RuntimeError) as error:  # it cannot be pinned
        log.warning("swap_space.not_used", why=str(error))
        return None


def _step_bytes(loaded: LoadedModel, probe: PackedRunner, embedder: Embedder | None, options: EngineOptions) -> int:
    """The memory of the worst step, which is run; on a CPU 0 for text, for which its share leaves enough.

    On an accelerator torch has reserved it afterwards.

    Raises:
        LoadError: there is none for it.
    """
    device = loaded.model.device
    if embedder is None and device.type == "cpu":
        return 0
    release_memory()  # what loading has left there
    context = context_of(loaded, options)
    tokens = step_tokens_of(options, PackedRunner(loaded.model, probe.cache, embedder=embedder), context)
    try:
        return step_memory(loaded.model, probe, embedder, structs.replace(options, step_tokens=tokens), context)
    except OUT_OF_MEMORY as error:
        raise LoadError(
            f"A step of {tokens} tokens and {options.max_sequences} sequences does not fit into the memory that the "
            f"model leaves of {device}: lower step_tokens or max_sequences."
        ) from error


def _embedder(loaded: LoadedModel, options: EngineOptions) -> Embedder | None:
    try:
        return make_embedder(loaded, options.model, options.step_tokens, context_of(loaded, options))
    except NotServed as error:
        raise _images_not_served(loaded, str(error)) from error


def _images_not_served(loaded: LoadedModel, why: str) -> LoadError:
    name = type(loaded.multimodal or loaded.model).__name__
    return LoadError(
        f"{name} takes images, which cannot be served rightly here: {why}. To serve its text "
        f"alone, set text_only = true. Models whose images are served by name: {', '.join(MULTIMODAL_REGISTRY.names)}."
    )


def per_sequence_runner(loaded: LoadedModel, options: EngineOptions) -> tuple[Runner, CacheSizes]:
    """A runner without a paged cache; its number of blocks limits the tokens of all sequences."""
    if options.kv_cache_dtype != "auto":
        raise LoadError(
            f"kv_cache_dtype = '{options.kv_cache_dtype}' is for models that run packed; this "
            f"{loaded.config.model_type} takes the per-sequence execution path."
        )
    text_only = options.text_only or options.execution_path == "per_sequence"
    if not text_only and find_processor(loaded, options.model) is not None:
        raise _images_not_served(loaded, "it takes the per-sequence execution path, which is for text only")
    # At least the whole context, so that the longest prompt can always be admitted.
    most = max(_PER_SEQUENCE_TOKENS, context_of(loaded, options)) // options.block_size
    blocks = _wanted_blocks(loaded, options)
    sizes = CacheSizes(blocks if options.kv_tokens else min(blocks, most), options.max_sequences)
    return PerSequenceRunner(loaded.model, tuple(options.lora_adapters), find_stacking(loaded.model)), sizes


def _cache_bytes(device: torch.device, step_bytes: int, sharers: int = 1) -> int:
    """Memory for the KV cache beside a step's `step_bytes`; torch has reserved an accelerator's when it was run."""
    if device.type != "cpu":
        return int(free_memory(device) * _GPU_SHARE) // sharers
    return min(int(max(0, available_memory() - step_bytes) * _CPU_SHARE) // sharers, _CPU_MAX_BYTES)
