"""At load: make the encoder ready, and run it over the worst picture, so that what it needs is taken before the rest of
the memory goes to the KV cache.
"""

from __future__ import annotations

from typing import Any

import structlog
import torch
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from backends.native.multimodal.embedder import Embedder
from backends.native.multimodal.processing import BaseMultiModalProcessor, NotServed
from backends.native.multimodal.prompts import load_processor
from backends.native.multimodal.registry import GENERIC, MULTIMODAL_REGISTRY, Registered
from backends.native.multimodal.selfcheck import why_not_served

log = structlog.get_logger()


def make_embedder(model: Any, folder: str, capacity: int) -> Embedder | None:
    """The embedder of `model`, if it takes pictures, with room for `capacity` embeddings or the worst picture.

    The dummy picture's embeddings stay in the cache until others need the room, so that memory measured after this
    holds them.

    Raises:
        NotServed: it takes pictures, and they cannot be served rightly.
    """
    known = MULTIMODAL_REGISTRY.about(model.config)
    if known is GENERIC and type(model.config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return None
    try:
        processor = load_processor(folder)
    except OSError as error:
        log.warning("images.not_served", model=folder, why=str(error))
        return None
    except (ImportError, ValueError, AttributeError) as error:
        raise NotServed(f"its image processor cannot be made: {error}") from error
    why = why_not_served(model, known, processor) if known is GENERIC else None
    if why is not None:
        raise NotServed(why)
    return _profiled(model, known, processor, capacity)


def _profiled(model: Any, known: Registered, processor: BaseMultiModalProcessor[Any], capacity: int) -> Embedder:
    counts = {"image": 1}
    dummies = known.dummy_inputs(processor.info)
    items = [processor.process(picture) for picture in dummies.get_dummy_mm_data(counts)]
    (feature,) = processor.apply(dummies.get_dummy_tokens(counts), items).features
    embedder = Embedder(known.model(model), max(capacity, feature.length), feature.length)
    with torch.inference_mode():
        made = len(embedder.encode(feature))
    wanted = sum(feature.is_embed) or feature.length
    if made != wanted:
        raise NotServed(f"its encoder makes {made} embeddings for {wanted} placeholder tokens")
    return embedder
