"""Models without a file of their own: transformers' processor decides which tokens represent an image.

Whether a model is served correctly this way is checked when the engine loads it (`engine.multimodal.self_check`). The
processor is built from the tokenizer and the image processor only, because its parts for videos need torchvision.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import product
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.images import DecodedImage
from backends.native.multimodal.inputs import (
    EMBEDDINGS,
    Arrays,
    ImageItem,
    ImageProcessorItems,
    ImageSize,
    MultiModalDataItems,
    MultiModalFieldConfig,
    MultiModalKwargs,
)
from backends.native.multimodal.interfaces import ModelWrapper, MultiModalEmbeddings
from backends.native.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    NotServed,
)
from backends.native.multimodal.updates import PromptReplacement, PromptUpdate, PromptUpdateDetails

if TYPE_CHECKING:
    from torch import Tensor

# Outputs of a processor that describe the text; all others are arguments of the encoder.
_TEXT_FIELDS = {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels"}
_TEXT_FIELDS |= {"text_replacement_offsets"}
# A client's embeddings are refused: which tokens they stand for, only a processor written for the model knows.
_OTHER_FIELDS = _TEXT_FIELDS | {EMBEDDINGS}
# The decoder's arguments for features of deeper layers.
_DEEPSTACK = frozenset({"visual_pos_masks", "deepstack_visual_embeds"})
# Sides by factors of the square root of 2, all pairs of which are tried: 225 sizes.
_SIDES = tuple(round(32 * 2 ** (step / 2)) for step in range(15))  # 32 to 4096
_MAX_PIXELS, _MAX_ASPECT = 16_000_000, 100  # the defaults of `ImageOptions`


class GenericProcessingInfo(BaseProcessingInfo):
    """The facts that transformers' processor knows."""

    @cached_property
    def _hf_processor(self) -> Any:
        from transformers.processing_utils import ProcessorMixin

        processor = super()._hf_processor
        # The base class's method means that the processor does not expand placeholders itself.
        if type(processor).replace_image_token is ProcessorMixin.replace_image_token:
            raise NotServed("its processor does not define which tokens represent an image")
        return processor

    @property
    def image_token_id(self) -> int:
        """The token that an embedding replaces."""
        # Both names occur in transformers' configurations.
        names = ("image_token_id", "image_token_index")
        found = [
            getattr(each, name, None) for each in (self.get_hf_config(), self.get_hf_processor()) for name in names
        ]
        ids = [id for id in found if isinstance(id, int)]
        if not ids:
            raise NotServed("its configuration names no token for images")
        return ids[0]

    def get_placeholder_str(self) -> str:
        """The token that the processor expands: usually the image token; for Gemma 3 the one before it."""
        processor = self.get_hf_processor()
        return str(getattr(processor, "boi_token", None) or processor.image_token)

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Unlimited."""
        return {"image": None}

    def get_image_size_with_most_features(self) -> ImageSize:
        """The worst of many sizes. As a worse one may be missed, `Ready.image_tokens` limits images to its tokens."""
        sizes = [
            ImageSize(width, height)
            for width, height in product(_SIDES, repeat=2)
            if width * height <= _MAX_PIXELS and max(width, height) <= _MAX_ASPECT * min(width, height)
        ]
        try:
            # Private, but the method that vLLM's transformers backend uses for the same purpose.
            counted = self.get_hf_processor()._get_num_multimodal_tokens([(s.height, s.width) for s in sizes])  # noqa: SLF001
            tokens = counted.num_image_tokens
        except (AttributeError, NotImplementedError, TypeError, ValueError, KeyError):  # it cannot count beforehand
            return ImageSize(2048, 2048)
        return max(zip(tokens, sizes, strict=True))[1]


class GenericDummyInputsBuilder(BaseDummyInputsBuilder[GenericProcessingInfo]):
    """One placeholder per image."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """The placeholders."""
        return self.info.get_placeholder_str() * mm_counts.get("image", 0)


class GenericMultiModalProcessor(BaseMultiModalProcessor[GenericProcessingInfo]):
    """Each placeholder becomes the tokens that transformers' processor replaces it by."""

    def __init__(self, info: GenericProcessingInfo) -> None:
        super().__init__(info)
        self._lock = Lock()  # the tokenizer is not thread-safe
        self._target: tuple[int, ...] = ()

    def process(self, image: DecodedImage) -> ImageItem:
        """Process one image with the whole processor."""
        size = ImageSize(image.width, image.height)
        pixels = np.frombuffer(image.rgb, np.uint8).reshape(size.height, size.width, 3)
        # Images of several requests are processed in threads at the same time.
        with self._lock:
            arrays, tokens = self._processed(pixels)
        return ImageItem(size, arrays, image.digest, tokens)

    def _processed(self, pixels: Any) -> tuple[Arrays, tuple[int, ...]]:
        """The encoder's arguments, and the image's placeholder tokens."""
        outputs = self.info.get_hf_processor()(
            text=[self.info.get_placeholder_str()],
            images=[pixels],
            input_data_format="channels_last",
            return_text_replacement_offsets=True,
            return_tensors="np",
        )
        # One text with one image, so one replacement. Its tokens are kept with the item: the prompt is expanded later,
        # perhaps from the cache.
        ((replaced,),) = outputs["text_replacement_offsets"]
        return self._fields(dict(outputs), {}), tuple(self.info.encode(replaced["replacement"]))

    def _get_mm_fields_config(
        self,
        hf_inputs: Arrays,
        hf_processor_mm_kwargs: Mapping[str, object],  # noqa: ARG002
    ) -> Mapping[str, MultiModalFieldConfig]:
        return {name: MultiModalFieldConfig.flat("image") for name in hf_inputs if name not in _OTHER_FIELDS}

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, object],  # noqa: ARG002
        out_mm_kwargs: MultiModalKwargs,  # noqa: ARG002
    ) -> Sequence[PromptUpdate]:
        # The placeholder as the tokenizer encodes it, which may be several tokens. Encoded at the first use.
        if not self._target:
            self._target = tuple(self.info.encode(self.info.get_placeholder_str()))
        items = mm_items.get_items("image", ImageProcessorItems)

        def tokens(index: int) -> PromptUpdateDetails:
            return PromptUpdateDetails.select_token_id(items.get(index).tokens, self.info.image_token_id)

        return [PromptReplacement("image", self._target, tokens)]


class GenericModel(ModelWrapper):
    """Wraps any class with `get_image_features`, and with `get_rope_index` if it uses M-RoPE.

    Features for deeper layers (DeepStack, arXiv 2406.04334) reach the decoder by a hook, since transformers' models
    pass on only those that they have just computed.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        decoder = model.get_decoder()
        if _DEEPSTACK.issubset(inspect.signature(decoder.forward).parameters):
            self.deeper_arguments = _DEEPSTACK
            decoder.register_forward_pre_hook(self._with_deeper, with_kwargs=True)

    def get_multimodal_embeddings(self, **kwargs: Tensor) -> MultiModalEmbeddings:
        """Encode one item; the arguments are passed on if `get_image_features` accepts them."""
        import torch

        # Pixels get the weights' type; integer fields, such as grids, stay exact.
        given = {name: each.to(self.model.dtype) if each.is_floating_point() else each for name, each in kwargs.items()}
        encode = self.model.get_image_features
        found = encode(**_accepted(given, encode), return_dict=True)
        # Models return one tensor or several (tiles), with or without a batch dimension: all become [tokens, hidden].
        features = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
        layers = [torch.cat([rows.reshape(-1, rows.shape[-1]) for rows in each]) for each in features]
        return [torch.cat(layers, dim=-1)]

    def get_mrope_input_positions(
        self, input_ids: Tensor, is_multimodal: Tensor, kwargs: Sequence[Mapping[str, Tensor]]
    ) -> tuple[Tensor, int] | None:
        """The positions of the model's own `get_rope_index`, if it has one."""
        import torch

        index = getattr(self.model.model, "get_rope_index", None)
        if index is None:
            return None
        # Each image has fields of its own; the model's function takes those of the whole prompt.
        given: dict[str, Tensor] = {name: torch.cat([each[name] for each in kwargs]) for name in kwargs[0]}
        given["mm_token_type_ids"] = is_multimodal.int().unsqueeze(0)
        positions, delta = index(input_ids.unsqueeze(0), **_accepted(given, index))
        # Without the batch dimension: [3, 1, tokens] becomes [3, tokens].
        return positions[:, 0], int(delta)

    def _with_deeper(self, _: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if self.deeper is None:
            return None
        # For one call: whoever runs the model otherwise has no step's features.
        (mask, features), self.deeper = self.deeper, None
        return args, named | {"visual_pos_masks": mask, "deepstack_visual_embeds": list(features)}


def _accepted(given: Mapping[str, Tensor], function: Callable[..., Any]) -> dict[str, Tensor]:
    """The arguments that `function` has a parameter for."""
    names = inspect.signature(function).parameters
    return {name: each for name, each in given.items() if name in names}
