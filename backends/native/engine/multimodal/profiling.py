"""Profiling at load: whether images can be served, and which is the largest."""

from __future__ import annotations

from typing import Any

import structlog
import torch
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from backends.native.engine.loading.weights import LoadedModel
from backends.native.engine.multimodal.self_check import find_unchunked
from backends.native.engine.runner.embedder import Embedder
from backends.native.multimodal.processing import BaseMultiModalProcessor, NotServed
from backends.native.multimodal.prompts import load_processor
from backends.native.multimodal.registry import GENERIC, MULTIMODAL_REGISTRY, Registered
from backends.native.protocol.messages import Feature

log = structlog.get_logger()


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


def _worst(known: Registered, processor: BaseMultiModalProcessor[Any], context: int) -> Feature:
    """The dummy image, the largest that the processor makes."""
    counts = {"image": 1}
    dummies = known.dummy_inputs(processor.info)
    items = processor.process_data(dummies.get_dummy_mm_data(context, counts))
    (feature,) = processor.apply(dummies.get_dummy_tokens(counts), items).features
    return feature
