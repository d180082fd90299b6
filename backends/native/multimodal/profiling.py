"""At load: make the encoder ready, and run it over the worst picture, so that what it needs is taken before the rest of
the memory goes to the KV cache.
"""

from __future__ import annotations

from typing import Any

import structlog
import torch

from backends.native.multimodal.embedder import Embedder
from backends.native.multimodal.prompts import load_processor
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY

log = structlog.get_logger()


def make_embedder(model: Any, folder: str, capacity: int) -> Embedder | None:
    """The embedder of `model`, if it is registered, with room for `capacity` embeddings or the worst picture.

    The dummy picture's embeddings stay in the cache until others need the room, so that memory measured after this
    holds them.
    """
    known = MULTIMODAL_REGISTRY.find(type(model).__name__)
    if known is None:
        return None
    try:
        processor = load_processor(folder)
    except OSError as error:
        log.warning("images.not_served", model=folder, why=str(error))
        return None
    if processor is None:
        return None
    counts = {"image": 1}
    dummies = known.dummy_inputs(processor.info)
    items = [processor.process(picture) for picture in dummies.get_dummy_mm_data(counts)]
    (feature,) = processor.apply(dummies.get_dummy_tokens(counts), items).features
    embedder = Embedder(known.model(model), max(capacity, feature.length))
    with torch.inference_mode():
        made = len(embedder.encode(feature))
    wanted = sum(feature.is_embed) or feature.length
    if made != wanted:
        raise ValueError(f"the encoder makes {made} embeddings for {wanted} placeholder tokens")
    return embedder
