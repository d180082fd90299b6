"""Qwen2-VL and Qwen2.5-VL: images of any size, one token per merged patch, M-RoPE positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING

from backends.images import EmbeddingsFile
from backends.native.multimodal.inputs import (
    Arrays,
    ImageItem,
    ImageSize,
    MultiModalDataItems,
    MultiModalFieldConfig,
    MultiModalInputs,
    MultiModalKwargs,
)
from backends.native.multimodal.interfaces import ModelWrapper, MultiModalEmbeddings
from backends.native.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY
from backends.native.multimodal.updates import PromptReplacement, PromptUpdate
from schemas.errors import InvalidRequest

if TYPE_CHECKING:
    from torch import Tensor


_MAX_ASPECT = 100  # the default of `ImageOptions.max_ratio`


class Qwen2VLProcessingInfo(BaseProcessingInfo):
    """Any number of images, resized to multiples of a patch's side within a range of pixels."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Unlimited."""
        return {"image": None}

    def get_placeholder_str(self) -> str:
        """The image token between the tokens with which the chat template frames it."""
        config = self.get_hf_config()
        ids = (config.vision_start_token_id, config.image_token_id, config.vision_end_token_id)
        return "".join(self.get_tokenizer().convert_ids_to_tokens(ids))

    def get_image_size_with_most_features(self) -> ImageSize:
        """The rectangle with the most tokens; a square's sides may be rounded down to fewer."""
        # A token is a square of merge_size x merge_size patches. `longest_edge` is no edge here: Qwen's processor
        # stores its greatest number of pixels under this name.
        side = self.get_image_processor().patch_size * self.get_image_processor().merge_size
        max_tokens = self.get_image_processor().size["longest_edge"] // side**2
        if max_tokens < _MAX_ASPECT:  # a strip may exceed it, because it keeps one row of tokens
            return ImageSize(_MAX_ASPECT * side, side)
        # The first is the greatest number of tokens that is a product of rows and columns within the aspect limit: a
        # prime is not.
        sizes = (
            (tokens // rows, rows)
            for tokens in range(max_tokens, 0, -1)
            for rows in range(1, isqrt(tokens) + 1)
            if tokens % rows == 0 and tokens // rows <= _MAX_ASPECT * rows
        )
        columns, rows = next(sizes)
        return ImageSize(columns * side, rows * side)


class Qwen2VLDummyInputsBuilder(BaseDummyInputsBuilder[Qwen2VLProcessingInfo]):
    """One placeholder per image."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """The placeholders."""
        return self.info.get_placeholder_str() * mm_counts.get("image", 0)


class Qwen2VLMultiModalProcessor(BaseMultiModalProcessor[Qwen2VLProcessingInfo]):
    """Repeats the image token once per square of merged patches."""

    def _get_mm_fields_config(
        self,
        hf_inputs: Arrays,  # noqa: ARG002
        hf_processor_mm_kwargs: Mapping[str, object],  # noqa: ARG002
    ) -> Mapping[str, MultiModalFieldConfig]:
        flat, batched = MultiModalFieldConfig.flat("image"), MultiModalFieldConfig.batched("image")
        return {"pixel_values": flat, "image_embeds": flat, "image_grid_thw": batched}

    def process_embeddings(self, file: EmbeddingsFile) -> ImageItem:
        """Take the embeddings of one image; its grid says how many there are."""
        item = super().process_embeddings(file)
        count, merged = len(item.arrays["image_embeds"]), self.info.get_image_processor().merge_size
        _, rows, columns = item.arrays["image_grid_thw"][0].tolist()
        # Checked before as many placeholders are made.
        if rows % merged or columns % merged or rows * columns != count * merged**2:
            raise InvalidRequest(
                f"'image_embeds' has {count} embeddings, which a grid of {rows} x {columns} patches does not make: "
                f"each is of {merged} x {merged} patches."
            )
        return item

    def _get_resize_kwargs(self) -> Mapping[str, object]:
        processor = self.info.get_image_processor()
        return {"factor": processor.patch_size * processor.merge_size}

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,  # noqa: ARG002
        hf_processor_mm_kwargs: Mapping[str, object],  # noqa: ARG002
        out_mm_kwargs: MultiModalKwargs,
    ) -> Sequence[PromptUpdate]:
        placeholder = self.info.get_hf_config().image_token_id
        merged = self.info.get_image_processor().merge_size ** 2

        def tokens(index: int) -> list[int]:
            # The grid counts patches before merging: time x rows x columns.
            return [placeholder] * int(out_mm_kwargs["image_grid_thw"][index].prod() // merged)

        return [PromptReplacement("image", [placeholder], tokens)]

    def apply(self, prompt_ids: Sequence[int], items: Sequence[ImageItem]) -> MultiModalInputs:
        """Put items into a prompt; adjacent images are rejected, because `get_rope_index` would take them for one."""
        inputs = super().apply(prompt_ids, items)
        if any(one.offset + one.length == other.offset for one, other in pairwise(inputs.features)):
            raise InvalidRequest("The images of a prompt must be separated by at least one token.")
        return inputs


class _Qwen2VL(ModelWrapper):
    def get_multimodal_embeddings(self, **kwargs: Tensor) -> MultiModalEmbeddings:
        """`pixel_values` is [patches, values], `image_grid_thw` [items, 3]."""
        found: Sequence[Tensor] = self.model.get_image_features(**kwargs, return_dict=True).pooler_output
        return found

    def get_mrope_input_positions(
        self, input_ids: Tensor, is_multimodal: Tensor, kwargs: Sequence[Mapping[str, Tensor]]
    ) -> tuple[Tensor, int]:
        """Positions by time, row and column."""
        import torch

        # `get_rope_index` finds the images by runs of `mm_token_type_ids` and takes one grid for each run.
        grids = torch.cat([fields["image_grid_thw"] for fields in kwargs])
        positions, delta = self.model.model.get_rope_index(
            input_ids.unsqueeze(0), mm_token_type_ids=is_multimodal.int().unsqueeze(0), image_grid_thw=grids
        )
        # Without the batch dimension: [3, 1, tokens] becomes [3, tokens].
        return positions[:, 0], int(delta)


_register = MULTIMODAL_REGISTRY.register_processor(
    Qwen2VLMultiModalProcessor, info=Qwen2VLProcessingInfo, dummy_inputs=Qwen2VLDummyInputsBuilder
)


@_register
class Qwen2VLForConditionalGeneration(_Qwen2VL):
    """Wraps transformers' class of the same name."""


@_register
class Qwen2_5_VLForConditionalGeneration(_Qwen2VL):  # noqa: N801 - transformers' name
    """Wraps transformers' class of the same name."""
