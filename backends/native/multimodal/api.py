"""What the author of a multimodal model imports: the names of vLLM's guide to multimodal support, with its signatures.

`docs/multimodal_models.md` lists where they differ.
"""

from __future__ import annotations

from backends.images import DecodedImage
from backends.native.multimodal.data import ModalityData, MultiModalDataDict
from backends.native.multimodal.inputs import (
    ImageEmbeddingItems,
    ImageItem,
    ImageProcessorItems,
    ImageSize,
    MultiModalDataItems,
    MultiModalFieldConfig,
    MultiModalKwargs,
)
from backends.native.multimodal.interfaces import (
    ModelWrapper,
    MultiModalEmbeddings,
    SupportsMultiModal,
    init_language_model,
    merge_multimodal_embeddings,
)
from backends.native.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    NotServed,
)
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY
from backends.native.multimodal.updates import PromptInsertion, PromptReplacement, PromptUpdate, PromptUpdateDetails

__all__ = [
    "MULTIMODAL_REGISTRY",
    "BaseDummyInputsBuilder",
    "BaseMultiModalProcessor",
    "BaseProcessingInfo",
    "DecodedImage",
    "ImageEmbeddingItems",
    "ImageItem",
    "ImageProcessorItems",
    "ImageSize",
    "ModalityData",
    "ModelWrapper",
    "MultiModalDataDict",
    "MultiModalDataItems",
    "MultiModalEmbeddings",
    "MultiModalFieldConfig",
    "MultiModalKwargs",
    "NotServed",
    "PromptInsertion",
    "PromptReplacement",
    "PromptUpdate",
    "PromptUpdateDetails",
    "SupportsMultiModal",
    "init_language_model",
    "merge_multimodal_embeddings",
]
