"""Build an engine from options: load the model, check it, choose its execution path, size its KV cache.

Strategy: a causal language model takes one of two execution paths. *Packed*: all sequences of a step in one forward,
over the paged KV cache. *Per-sequence*: one forward for each sequence, over transformers' own cache. The path is chosen
at every start by running a small random copy of the model both ways (`loading.self_check`), not by a list of model
types. Layers are replaced by fused or quantized ones only if the copy's logits stay the same. The KV cache then gets a
share of the memory that is left (`runners`). With `tensor_parallel`, several ranks take the same steps (`parallel`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import torch
from msgspec import structs

from backends.native.classification import Head, read_head
from backends.native.engine.attention.progress import watch_layers
from backends.native.engine.defaults import with_own_device, with_sizes
from backends.native.engine.devices import make_current
from backends.native.engine.draft_model import DraftModel, why_not_alike
from backends.native.engine.encoder_engine import EncoderEngine
from backends.native.engine.errors import LoadError
from backends.native.engine.kernels import jit
from backends.native.engine.layers.block_linear import blocked_weights
from backends.native.engine.layers.quantized_linear import BITS
from backends.native.engine.loading.execution_path import choose_path
from backends.native.engine.loading.lora_check import why_not_adapted
from backends.native.engine.loading.mtp import load_mtp
from backends.native.engine.loading.splitting import check_split
from backends.native.engine.loading.weights import LoadedModel, is_encoder, load, load_encoder, pick_device
from backends.native.engine.loop import Engine
from backends.native.engine.lora.layers import inject_lora
from backends.native.engine.lora.table import LoraTable
from backends.native.engine.lora.weights import load_lora_adapters
from backends.native.engine.mtp_drafts import MtpDrafts
from backends.native.engine.overlap import can_overlap
from backends.native.engine.parallel.gang import Gang, LeadingGang
from backends.native.engine.pooling.answer_scores import AnswerScores
from backends.native.engine.pooling.hidden_states import HiddenStates
from backends.native.engine.pooling.pooler import Pooler
from backends.native.engine.pooling.sparse import SparsePooler
from backends.native.engine.runner.packed import PackedRunner, Runner
from backends.native.engine.runners import (
    context_of,
    packed_runner,
    per_sequence_runner,
    probe_runner,
    step_tokens_of,
)
from backends.native.engine.sampling.grammar_masks import Constraints
from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.engine.scheduling.scheduler import Scheduler
from backends.native.engine.scheduling.speculation import DraftSource, Speculation
from backends.native.engine.steps import Manageable
from backends.native.machine import physical_cores
from backends.native.model_files import check_sizes
from backends.native.protocol.engine_options import MTP, EngineOptions
from backends.native.protocol.messages import Loading, Ready
from backends.native.sentence_transformers import PLAIN, Recipe, RecipeError, read_recipe

log = structlog.get_logger()
Report = Callable[[Loading], None]

# Below this number of parameters one thread is about as fast as three, for a third of the CPU time (measured).
_SMALL_PARAMETERS = 8_000_000
# Fields of `Ready` that are logged when an engine has started.
_MAX_LOGITS = 2**26  # of a step that makes a row of them for each token, 256 MiB
_LOGGED = ("execution_path", "device", "dtype", "context_length", "max_sequences", "lora_adapters")


def load_engine(options: EngineOptions, report: Report) -> tuple[Manageable, Ready]:
    """Load a model; return an engine ready to step, and the `Ready` message that announces it to workers.

    Args:
        options: what to load and how to run it.
        report: called with the progress of loading.

    Raises:
        LoadError: the model cannot be loaded or run with these options.
    """
    # An error in the options is reported before seconds are spent on loading weights.
    _check(options)
    options = with_sizes(with_own_device(options))
    make_current(pick_device(options.device))
    report(Loading(0.0, "reading weights"))
    try:
        check_sizes(Path(options.model))
        head = read_head(options.model, options.reranker)
        recipe = None if head else read_recipe(options.model)
    except (RecipeError, ValueError) as error:
        raise LoadError(str(error)) from None
    embeds = head is None and (recipe is not None or is_encoder(options.model))
    if options.draft_model and (head is not None or embeds or options.tensor_parallel > 1):
        raise LoadError("draft_model is for models that generate text on one device: leave it out.")
    if options.tensor_parallel > 1:
        if head is not None or embeds:
            raise LoadError("Only models that generate text run on several devices: leave out tensor_parallel.")
        check_split(options)
    if head is not None:
        engine, ready = _classifier(head, options)
    elif embeds:
        # A sentence-transformers recipe decides even for a checkpoint that could generate: its folder was published
        # for embeddings.
        engine, ready = _encoder(recipe or PLAIN, options)
    else:
        engine, ready = _generator(options, report)
    log.info("engine.started", model=options.model, **{name: getattr(ready, name) for name in _LOGGED})
    return engine, ready


def _generator(options: EngineOptions, report: Report) -> tuple[Manageable, Ready]:
    """Build the engine of a causal language model."""
    # The order of what follows is fixed. Layers are replaced and checked before LoRA adapters wrap them; the cache is
    # sized last, when weights and LoRA adapters have taken their memory.
    gang = LeadingGang(options, pick_device(options.device)) if options.tensor_parallel > 1 else None
    # Loading compiles one library already, the self-check most others.
    compiles = pick_device(options.device).type == "cpu" and jit.is_first_build()
    drafting = _load_draft_model(options) if options.draft_model not in ("", MTP) else None
    loaded = _load(options)
    replaces = options.execution_path == "auto"
    mtp = load_mtp(loaded, options.model, replaces=replaces) if options.draft_model == MTP else None
    report(Loading(0.6, "compiling kernels, once; self-check" if compiles else "self-check"))
    packed = choose_path(loaded, options)
    if options.lora_adapters:
        _inject_lora_adapters(loaded.model, options.lora_adapters, "packed" if packed else "per_sequence")
    report(Loading(0.8, "reserving the cache"))
    runner: Runner
    with torch.inference_mode():
        beside = drafting[1].cache.bytes_per_block if drafting else 0
        if packed:
            runner, sizes = packed_runner(loaded, options, gang, beside, mtp)
        else:
            runner, sizes = per_sequence_runner(loaded, options)
        if options.draft_model and not runner.speculates:
            raise LoadError(f"This {loaded.config.model_type} verifies no drafts: leave out draft_model.")
        source: DraftSource | None = _draft_model(*drafting, loaded, sizes.blocks, options) if drafting else None
        if mtp is not None:
            assert isinstance(runner, PackedRunner)
            source = MtpDrafts(mtp, loaded.model, runner)
        elif isinstance(runner, PackedRunner) and runner.cache.spare_blocks:
            report(Loading(0.9, "capturing graphs"))
            runner.capture_graphs(sizes.sequences, context_of(loaded, options))
    if gang is not None:
        gang.loaded()
    options = structs.replace(options, max_sequences=sizes.sequences)
    return _assemble(loaded, options, runner, sizes.blocks, source)


def _load_draft_model(options: EngineOptions) -> tuple[LoadedModel, PackedRunner]:
    """Load the model that writes drafts, and run it once.

    Raises:
        LoadError: it cannot be loaded, or does not run packed.
    """
    if (why := why_not_alike(options.model, options.draft_model)) is not None:
        raise LoadError(f"draft_model '{options.draft_model}' cannot write drafts for '{options.model}': {why}.")
    plain = structs.replace(options, model=options.draft_model, lora_adapters={}, lora_folder="", text_only=True)
    loaded = _load(plain)
    with torch.inference_mode():
        probe = probe_runner(loaded, plain) if choose_path(loaded, plain) else None
    if probe is None or not probe.speculates:
        raise LoadError(f"draft_model '{options.draft_model}' must run packed, without recurrent states.")
    return loaded, probe


def _draft_model(
    small: LoadedModel, probe: PackedRunner, large: LoadedModel, blocks: int, options: EngineOptions
) -> DraftModel:
    """What writes drafts, with as many blocks as the model that verifies them."""
    return DraftModel(
        PackedRunner(small.model, probe.cache.resized(blocks)),
        BlockPool(blocks, options.block_size, caching=False),
        step_tokens=options.step_tokens,
        vocab_size=min(small.vocab_size, large.vocab_size),
        context_length=small.context_length,
    )


def load_rank(options: EngineOptions, rank: int, folder: Path) -> tuple[PackedRunner, Gang]:
    """Load a rank other than the first of a model on several devices, by the same steps as the first (`_generator`).

    Args:
        options: the engine's, as the leader has them: its device is the first rank's.
        rank: from 1.
        folder: where the ranks find each other.

    Raises:
        LoadError: the model cannot be loaded or split.
    """
    first = pick_device(options.device)
    device = first if first.type == "cpu" else torch.device(first.type, (first.index or 0) + rank)
    gang = Gang(rank, options.tensor_parallel, folder, device)
    options = with_sizes(structs.replace(options, device=str(device)))
    loaded = _load(options)
    choose_path(loaded, options)
    with torch.inference_mode():
        return packed_runner(loaded, options, gang)[0], gang


def _load(options: EngineOptions) -> LoadedModel:
    # Weights stay in a file's blocks unless a dtype was asked for.
    keep, ranks = options.dtype == "auto", options.tensor_parallel
    loaded = load(options.model, options.dtype, options.device, keep=keep, ranks=ranks)
    torch.set_num_threads(options.threads or _threads(loaded.model, options))
    return loaded


def _encoder(recipe: Recipe, options: EngineOptions) -> tuple[Manageable, Ready]:
    """Build the engine of a model that makes embeddings and no text."""
    folder = str(Path(options.model, recipe.folder))
    pooler: Pooler | SparsePooler
    if recipe.splade is not None:
        loaded = load_encoder(folder, options.dtype, options.device, kind="masked")
        pooler = SparsePooler(recipe.splade)
        # A row of logits is as wide as the vocabulary.
        step_tokens = min(options.step_tokens, _MAX_LOGITS // loaded.vocab_size)
        options = structs.replace(options, step_tokens=step_tokens)
    else:
        loaded = load_encoder(folder, options.dtype, options.device)
        pooler = Pooler(recipe, options.model, loaded.config.hidden_size, loaded.model.device)
    context = min(context_of(loaded, options), recipe.max_length or loaded.context_length)
    return _encoder_engine(loaded, pooler, context, options)


def _classifier(head: Head, options: EngineOptions) -> tuple[Manageable, Ready]:
    """Build the engine of a model that makes scores and no text."""
    answers = head.of.answers
    loaded = load_encoder(
        str(Path(options.model, head.of.folder)), options.dtype, options.device, kind="answers" if answers else "labels"
    )
    if answers:
        if max(answers) >= loaded.vocab_size:
            raise LoadError(f"The model has no token {max(answers)}, whose logit would be its score.")
        loaded = dataclasses.replace(loaded, model=AnswerScores(loaded.model, answers))
    # The heads of decoders take the last token that is no padding: without a padding token they take one text a time.
    alone = not answers and loaded.config.pad_token_id is None and not is_encoder(options.model)
    options = structs.replace(options, max_sequences=1) if alone else options
    return _encoder_engine(loaded, None, context_of(loaded, options), options)


def _encoder_engine(
    loaded: LoadedModel, pooler: Pooler | SparsePooler | None, context: int, options: EngineOptions
) -> tuple[Manageable, Ready]:
    torch.set_num_threads(options.threads or _threads(loaded.model, options))
    watch_layers(loaded.model)
    engine = EncoderEngine(
        loaded.model,
        pooler,
        vocab_size=loaded.vocab_size,
        context_length=context,
        step_tokens=options.step_tokens,
        max_sequences=options.max_sequences,
        max_waiting=options.max_waiting,
        short_first=options.short_first,
    )
    size = pooler.size if pooler else 0
    return engine, _ready(loaded, options, context, execution_path="encoder", embedding_size=size, generates=False)


def _ready(loaded: LoadedModel, options: EngineOptions, context: int, **more: Any) -> Ready:
    return Ready(
        context_length=context,
        vocab_size=loaded.vocab_size,
        eos_token_ids=loaded.eos_token_ids,
        dtype=options.dtype if options.dtype in BITS else str(loaded.model.dtype).removeprefix("torch."),
        device=str(loaded.model.device),
        max_sequences=options.max_sequences,
        **more,
    )


def _check(options: EngineOptions) -> None:
    if options.execution_path not in ("auto", "packed", "per_sequence"):
        raise LoadError(f"execution_path must be auto, packed or per_sequence, not '{options.execution_path}'.")
    if options.kv_cache_dtype not in ("auto", "int8"):
        raise LoadError(f"kv_cache_dtype must be auto or int8, not '{options.kv_cache_dtype}'.")
    for name in ("block_size", "tensor_parallel"):
        if getattr(options, name) < 1:
            raise LoadError(f"{name} must be at least 1, not {getattr(options, name)}.")
    for name in ("threads", "max_sequences", "step_tokens", "context_length", "kv_tokens", "max_waiting"):
        if getattr(options, name) < 0:
            raise LoadError(f"{name} must not be negative.")


def _inject_lora_adapters(model: Any, folders: dict[str, str], execution_path: str) -> None:
    lora_adapters = load_lora_adapters(model, folders)
    why = why_not_adapted(model, {layer for lora in lora_adapters.values() for layer in lora}, execution_path)
    if why is not None:
        raise LoadError(f"LoRA adapters cannot be applied to this {model.config.model_type}: {why}.")
    inject_lora(model, lora_adapters)


def _threads(model: Any, options: EngineOptions) -> int:
    """All cores but one, which is left to the workers; one for a small model, whose layers cost less than a barrier."""
    small = sum(each.numel() for each in model.parameters()) + blocked_weights(model) < _SMALL_PARAMETERS
    return 1 if small else max(1, (physical_cores() - 1) // (options.replica_count * options.tensor_parallel))


def _assemble(
    loaded: LoadedModel, options: EngineOptions, runner: Runner, blocks: int, source: DraftSource | None = None
) -> tuple[Engine, Ready]:
    # A sequence longer than the whole cache could never be run, so `Ready` must not announce such a context.
    context = min(context_of(loaded, options), blocks * options.block_size)
    scheduler = Scheduler(
        # The per-sequence path has no pages: its blocks only limit how many tokens are held, and there is nothing to
        # share.
        BlockPool(blocks, options.block_size, caching=options.prefix_caching and runner.unchunked != "prompt"),
        step_tokens=step_tokens_of(options, runner, context),
        max_sequences=options.max_sequences,
        max_waiting=options.max_waiting,
        unchunked=runner.unchunked,
        short_first=options.short_first,
        on_preempted=runner.forget,
        snapshots=runner.states,
    )
    scheduler.swap = runner.swap
    scheduler.looks_ahead = isinstance(source, MtpDrafts)
    hidden = HiddenStates.of(loaded.model, runner)
    ready = _ready(
        loaded,
        options,
        context,
        execution_path=runner.execution_path,
        image_tokens=runner.image_tokens,
        embedding_size=hidden.size if hidden else 0,
        lora_adapters=runner.lora_adapters,
        block_size=options.block_size if scheduler.pool.caching else 0,
    )
    engine = Engine(
        runner,
        scheduler,
        vocab_size=loaded.vocab_size,
        context_length=context,
        constraints=Constraints.load(options.model, loaded.vocab_size, loaded.eos_token_ids),
        hidden=hidden,
        speculation=Speculation(source) if source or (options.speculation and runner.speculates) else None,
        loras=_loras(loaded.model, options, runner),
        overlaps=can_overlap(runner, loaded.model.device),
    )
    return engine, ready


def _loras(model: Any, options: EngineOptions, runner: Runner) -> LoraTable:
    """The LoRA adapters of the options, and what loads others, if the options allow it."""
    if not options.lora_folder:
        return LoraTable(options.lora_adapters)
    check = partial(why_not_adapted, model, execution_path=runner.execution_path)
    return LoraTable(options.lora_adapters, model, check, runner.lora_adapters_changed)
