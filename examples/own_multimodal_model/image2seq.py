# ruff: noqa
# mypy: ignore-errors
"""A multimodal model of your own, by the five steps of vLLM's guide to multimodal support.

The model is LLaVA, written as a module that transformers does not have. All methods but those under "what the guide
presupposes" are the guide's own text (https://docs.vllm.ai, Apache-2.0); of it only imports and line breaks are changed.
"""

import torch
from torch import nn
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional
from transformers import AutoModel, BatchFeature

from backends.native.multimodal.api import (
    MULTIMODAL_REGISTRY,
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    ImageProcessorItems,
    ImageSize,
    MultiModalDataDict,
    MultiModalDataItems,
    MultiModalEmbeddings,
    MultiModalFieldConfig,
    MultiModalKwargs,
    PromptReplacement,
    PromptUpdate,
    SupportsMultiModal,
    init_language_model,
    merge_multimodal_embeddings,
)


# Step 2: processing information
class YourProcessingInfo(BaseProcessingInfo):
    def get_supported_mm_limits(self) -> Mapping[str, Optional[int]]:
        return {"image": None, "video": 1}

    # Step 3: how many tokens an image has, and the size of the largest
    def get_num_image_tokens(
        self,
        *,
        image_width: int,
        image_height: int,
    ) -> int:
        hf_config = self.get_hf_config()
        hf_processor = self.get_hf_processor()

        image_size = hf_config.vision_config.image_size
        patch_size = hf_config.vision_config.patch_size

        num_image_tokens = (image_size // patch_size) ** 2 + 1
        if hf_processor.vision_feature_select_strategy == "default":
            num_image_tokens -= 1

        return num_image_tokens

    def get_image_size_with_most_features(self) -> ImageSize:
        hf_config = self.get_hf_config()
        width = height = hf_config.image_size
        return ImageSize(width=width, height=height)


# Step 3: dummy inputs
class YourDummyInputsBuilder(BaseDummyInputsBuilder[YourProcessingInfo]):
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        num_images = mm_counts.get("image", 0)

        processor = self.info.get_hf_processor()
        image_token = processor.image_token

        return image_token * num_images

    def get_dummy_mm_data(
        self,
        seq_len: int,
        mm_counts: Mapping[str, int],
    ) -> MultiModalDataDict:
        num_images = mm_counts.get("image", 0)

        target_width, target_height = self.info.get_image_size_with_most_features()

        return {"image": self._get_dummy_images(width=target_width, height=target_height, num_images=num_images)}


# Step 4: processing details
class YourMultiModalProcessor(BaseMultiModalProcessor[YourProcessingInfo]):
    def _get_mm_fields_config(
        self,
        hf_inputs: BatchFeature,
        hf_processor_mm_kwargs: Mapping[str, object],
    ) -> Mapping[str, MultiModalFieldConfig]:
        return dict(
            pixel_values=MultiModalFieldConfig.batched("image"),
        )

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, object],
        out_mm_kwargs: MultiModalKwargs,
    ) -> Sequence[PromptUpdate]:
        hf_config = self.info.get_hf_config()
        image_token_id = hf_config.image_token_index

        def get_replacement(item_idx: int):
            images = mm_items.get_items("image", ImageProcessorItems)

            image_size = images.get_image_size(item_idx)
            num_image_tokens = self.info.get_num_image_tokens(
                image_width=image_size.width,
                image_height=image_size.height,
            )

            return [image_token_id] * num_image_tokens

        return [
            PromptReplacement(
                modality="image",
                target=[image_token_id],
                replacement=get_replacement,
            ),
        ]


# What the guide presupposes: the modules of the model.
class VisionEncoder(nn.Module):
    """A tower whose patches, of one of its layers, are the features of an image."""

    def __init__(self, config) -> None:
        super().__init__()
        self.tower = AutoModel.from_config(config.vision_config)
        self.layer = config.vision_feature_layer

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.tower(pixel_values, output_hidden_states=True).hidden_states[self.layer][:, 1:]


class Projector(nn.Module):
    """Two linear layers."""

    def __init__(self, config) -> None:
        super().__init__()
        width = config.text_config.hidden_size
        self.linear_1 = nn.Linear(config.vision_config.hidden_size, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.linear_2(nn.functional.gelu(self.linear_1(features)))


# Steps 1 and 5: the model, registered
@MULTIMODAL_REGISTRY.register_processor(
    YourMultiModalProcessor, info=YourProcessingInfo, dummy_inputs=YourDummyInputsBuilder
)
class YourModelForImage2Seq(nn.Module, SupportsMultiModal):
    # What the guide presupposes: a model that is built from the configuration and loads its weights.
    def __init__(self, config) -> None:
        super().__init__()
        self.config = config
        self.vision_encoder = VisionEncoder(config)
        self.multi_modal_projector = Projector(config)
        self.language_model = init_language_model(config.text_config)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        named = {name.replace("vision_tower.", "vision_encoder.tower."): weight for name, weight in weights}
        self.load_state_dict(named)
        return set(named)

    def _parse_and_validate_image_input(self, **kwargs: object) -> Optional[torch.Tensor]:
        pixel_values = kwargs.get("pixel_values")
        return None if pixel_values is None else pixel_values.to(self.language_model.dtype)

    # The guide's:
    def _process_image_input(self, image_input: torch.Tensor) -> torch.Tensor:

        assert self.vision_encoder is not None
        image_features = self.vision_encoder(image_input)
        return self.multi_modal_projector(image_features)

    def get_multimodal_embeddings(self, **kwargs: object) -> Optional[MultiModalEmbeddings]:

        # Validate the multimodal input keyword arguments
        image_input = self._parse_and_validate_image_input(**kwargs)
        if image_input is None:
            return None

        # Run multimodal inputs through encoder and projector
        vision_embeddings = self._process_image_input(image_input)
        return vision_embeddings

    def get_input_embeddings(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: Optional[MultiModalEmbeddings] = None,
    ) -> torch.Tensor:

        # `get_input_embeddings` should already be implemented for the language
        # model as one of the requirements of basic vLLM model implementation.
        inputs_embeds = self.language_model.get_input_embeddings(input_ids)

        if multimodal_embeddings is not None:
            inputs_embeds = merge_multimodal_embeddings(
                input_ids=input_ids,
                inputs_embeds=inputs_embeds,
                multimodal_embeddings=multimodal_embeddings,
                placeholder_token_id=self.config.image_token_index,
            )

        return inputs_embeds

    def get_language_model(self) -> nn.Module:
        return self.language_model
