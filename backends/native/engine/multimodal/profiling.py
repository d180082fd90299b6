"""Profiling at load: whether images can be served, and the peak memory of a step with them.

The worst step is run with dummy inputs: the encoder cache full of the largest images, one more image in the encoder,
and as many tokens, sequences and logits as a step can have. The KV cache then gets no memory that such a step needs.
"""

from __future__ import annotations

from typing import Any

import structlog
import torch
from msgspec.structs import replace
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from backends.native.engine.loading.weights import LoadedModel
from backends.native.engine.multimodal.peak_memory import peak_memory
from backends.native.engine.multimodal.self_check import find_unchunked
from backends.native.engine.runner.embedder import Embedder
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.sampling.sampler import sample
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.multimodal.processing import BaseMultiModalProcessor, NotServed
from backends.native.multimodal.prompts import load_processor
from backends.native.multimodal.registry import GENERIC, MULTIMODAL_REGISTRY, Registered
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Feature, SamplingParams, Submit

log = structlog.get_logger()

# The sampling parameters that need most memory for a row of logits.
_SAMPLING = SamplingParams(
    temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, typical_p=0.9, repetition_penalty=1.1, presence_penalty=0.1
)
_TOP_LOGPROBS = 20


def make_embedder(loaded: LoadedModel, folder: str, capacity: int, context: int) -> Embedder | None:
    """Make the embedder of a model that takes images; None if the model takes none.

    Args:
        loaded: the model.
        folder: of its checkpoint.
        capacity: embeddings to keep; the largest image is kept in any case.
        context: tokens of the longest sequence.

    Raises:
        NotServed: the model takes images, and they cannot be served rightly.
    """
    processor = find_processor(loaded, folder)
    if processor is None:
        return None
    known = MULTIMODAL_REGISTRY.lookup(loaded.whole_config)
    found = find_unchunked(loaded.model, known, processor) if known is GENERIC else None
    worst = _worst(known, processor, context)
    model = loaded.multimodal or known.wrap(loaded.model)
    embedder = Embedder(model, max(capacity, worst.length), worst)
    embedder.unchunked = found or embedder.unchunked
    with torch.inference_mode():
        made = len(embedder.encode(worst))
    wanted = sum(worst.is_embed) or worst.length
    if made != wanted:
        raise NotServed(f"its encoder makes {made} embeddings for {wanted} placeholder tokens")
    return embedder


def find_processor(loaded: LoadedModel, folder: str) -> BaseMultiModalProcessor[Any] | None:
    """Load the image processor of a model; None if it takes no images, or `folder` has no processor.

    Raises:
        NotServed: the model takes images, and its processor cannot be made.
    """
    known = MULTIMODAL_REGISTRY.lookup(loaded.whole_config)
    if known is GENERIC and type(loaded.whole_config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return None
    try:
        return load_processor(folder)
    except OSError as error:
        log.warning("images.not_served", model=folder, why=str(error))
        return None
    except (ImportError, ValueError, AttributeError) as error:
        raise NotServed(f"its image processor cannot be made: {error}") from error


def profile(model: Any, probe: PackedRunner, embedder: Embedder, options: EngineOptions, context: int) -> int:
    """Measure the most bytes that a step holds beside weights and KV cache.

    The embeddings of the dummy images stay in the encoder cache until others need the room.

    Args:
        model: as it will be run, with its layers replaced.
        probe: a runner over a single block, to which all tokens are written here.
        embedder: of the model, with its largest image.
        options: how many tokens and sequences a step may have.
        context: tokens of the longest sequence.
    """
    assert embedder.worst is not None
    runner = PackedRunner(model, probe.cache, embedder=embedder)
    with torch.inference_mode(), peak_memory(model.device) as peak:
        # Fill the encoder cache to its bound, and have one more image made while it is full.
        full, left = divmod(embedder.capacity, embedder.worst.length)
        for number in range(full + 2):
            made = embedder.encode(_renamed(embedder.worst, number))
        smaller = made.new_empty(left, *made.shape[1:])  # smaller images may fill the rest of the cache
        for sequences in (1, options.max_sequences):
            works = _worst_works(embedder.worst, options, context, sequences)
            sample(works, runner.run(works).nan_to_num_())  # most of the block has never been written
            embedder.encode(_renamed(embedder.worst, full + 2 + sequences))  # while the sequences' histories are alive
            for work in works:
                runner.forget(work.sequence)
        del smaller
    return peak.bytes


def _worst(known: Registered, processor: BaseMultiModalProcessor[Any], context: int) -> Feature:
    """The dummy image, the largest that the processor makes."""
    counts = {"image": 1}
    dummies = known.dummy_inputs(processor.info)
    items = processor.process_data(dummies.get_dummy_mm_data(context, counts))
    (feature,) = processor.apply(dummies.get_dummy_tokens(counts), items).features
    return feature


def _worst_works(worst: Feature, options: EngineOptions, context: int, sequences: int) -> list[Work]:
    """The works of a worst step.

    The first is the end of a longest prompt made of images, all of its logits requested. Each of the others has its
    last two tokens, if the step has room: for a single token attention may need less memory.
    """
    budget = max(options.step_tokens, options.max_sequences)
    each = min(2, budget // options.max_sequences, context)
    chunk = min(budget - each * (sequences - 1), context)
    spacing = worst.length + 1
    count = min(chunk // spacing + 2, context // spacing)
    places = range(context - count * spacing, context - 1, spacing)
    features = tuple(replace(_renamed(worst, number), offset=place) for number, place in enumerate(places))
    prompt = (0,) * context
    submit = Submit(0, prompt, 1, _SAMPLING, top_logprobs=_TOP_LOGPROBS)
    scored = Submit(0, prompt, 1, _SAMPLING, prompt_logprobs=_TOP_LOGPROBS, features=features)
    blocks = [0] * -(-context // options.block_size)
    works = []
    for arrival in range(sequences):
        sequence = Sequence(0, submit if arrival else scored, arrival)
        sequence.blocks.extend(blocks)
        tokens = each if arrival else chunk
        works.append(Work(sequence, context - tokens, tokens, samples=True))
    return works


def _renamed(feature: Feature, number: int) -> Feature:
    """A copy that counts as another image."""
    return replace(feature, identifier=feature.identifier + number.to_bytes(4, "big"))
