"""Fuyu: no vision tower. An image's patches, row by row, are projected and precede the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.native.multimodal.inputs import (
    Arrays,
    ImageSize,
    MultiModalDataItems,
    MultiModalFieldConfig,
    MultiModalKwargs,
)
from backends.native.multimodal.interfaces import ModelWrapper, MultiModalEmbeddings
from backends.native.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY
from backends.native.multimodal.updates import PromptInsertion, PromptUpdate, PromptUpdateDetails

if TYPE_CHECKING:
    from torch import Tensor

_NEWLINE, _BEGINNING_OF_ANSWER = "|NEWLINE|", "<0x04>"


class FuyuProcessingInfo(BaseProcessingInfo):
    """One image, in patches, no larger than the image processor's canvas."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """One image."""
        return {"image": 1}

    def get_image_size_with_most_features(self) -> ImageSize:
        """The canvas."""
        return ImageSize(self.get_image_processor().size["width"], self.get_image_processor().size["height"])

    def token_id(self, name: str) -> int:
        """The id of a structural token."""
        return int(self.get_tokenizer().convert_tokens_to_ids(name))

    @property
    def bos_token_id(self) -> int:
        """The token between image and text."""
        return int(self.get_hf_config().text_config.bos_token_id)


class FuyuDummyInputsBuilder(BaseDummyInputsBuilder[FuyuProcessingInfo]):
    """An empty prompt: images need no placeholder."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:  # noqa: ARG002
        """No text."""
        return ""


class FuyuMultiModalProcessor(BaseMultiModalProcessor[FuyuProcessingInfo]):
    """Equivalent to transformers' `FuyuProcessor`, which needs torchvision's image processor."""

    def _call_hf_processor(self, prompt: str, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, object]) -> Arrays:  # noqa: ARG002
        processor = self.info.get_image_processor()
        # `None`: the outputs are nested lists, per request and per image; here one of each.
        outputs = processor(
            list(mm_data["images"]), return_tensors=None, input_data_format="channels_last", **mm_kwargs
        )
        ((height,),), ((width,),) = outputs["image_unpadded_heights"], outputs["image_unpadded_widths"]
        patch_height, patch_width = processor.patch_size["height"], processor.patch_size["width"]
        # Rounded up: the last row and column of patches may be part padding.
        rows, columns = -(-height // patch_height), -(-width // patch_width)
        # The processor pads images to its full canvas, `[3, height, width]`. Patches of padding alone are not tokens,
        # so they are cut off.
        canvas = np.asarray(outputs["images"][0][0])
        patches = processor.patchify_image(canvas[:, : rows * patch_height, : columns * patch_width])
        return {"pixel_values": patches, "grid": np.array([[rows, columns]])}

    def _get_mm_fields_config(
        self,
        hf_inputs: Arrays,  # noqa: ARG002
        hf_processor_mm_kwargs: Mapping[str, object],  # noqa: ARG002
    ) -> Mapping[str, MultiModalFieldConfig]:
        flat, batched = MultiModalFieldConfig.flat("image"), MultiModalFieldConfig.batched("image")
        return {"pixel_values": flat, "grid": batched}

    # Its processor has steps of its own, which `begins_with_resize` does not accept, but resizing is the first of them.
    def _get_resize_kwargs(self) -> Mapping[str, object]:
        return {}

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,  # noqa: ARG002
        hf_processor_mm_kwargs: Mapping[str, object],  # noqa: ARG002
        out_mm_kwargs: MultiModalKwargs,
    ) -> Sequence[PromptUpdate]:
        placeholder = self.info.get_hf_config().image_token_id

        def tokens(index: int) -> PromptUpdateDetails:
            ((rows, columns),) = out_mm_kwargs["grid"][index].tolist()
            # A line break after each row is the only mark of an image's rows.
            lines = ([placeholder] * columns + [self.info.token_id(_NEWLINE)]) * rows
            return PromptUpdateDetails.select_token_id([*lines, self.info.bos_token_id], placeholder)

        return [PromptInsertion("image", (), tokens)]

    def _apply_hf_processor_tokens_only(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        """Drop the text's `<s>`, which comes with the image, and append the token that begins the answer."""
        # The tokenizer puts `<s>` before every text; in Fuyu's prompts it stands between image and text.
        text = prompt_ids[1:] if prompt_ids[:1] and prompt_ids[0] == self.info.bos_token_id else prompt_ids
        return [*text, self.info.token_id(_BEGINNING_OF_ANSWER)]


@MULTIMODAL_REGISTRY.register_processor(
    FuyuMultiModalProcessor, info=FuyuProcessingInfo, dummy_inputs=FuyuDummyInputsBuilder
)
class FuyuForCausalLM(ModelWrapper):
    """Wraps transformers' class of the same name."""

    def get_multimodal_embeddings(self, **kwargs: Tensor) -> MultiModalEmbeddings:
        """`pixel_values` is [patches, values] of one image."""
        pixels = kwargs["pixel_values"].to(self.model.dtype)
        found: Tensor = self.model.model.get_image_features(pixel_values=pixels, return_dict=True).last_hidden_state
        return [found]
