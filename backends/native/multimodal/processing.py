"""The three things to say about a model's pictures: its limits, its worst case, and how a picture becomes tokens.

Only the image processor of transformers is used, never `AutoProcessor`, which wants torchvision wherever a model also
takes videos; the prompt is updated here, as token ids. In one process with the tokenizer, without torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from backends.images import DecodedImage
from backends.native.multimodal.inputs import (
    Arrays,
    ImageItem,
    ImageSize,
    MultiModalFieldConfig,
    MultiModalInputs,
    make_feature,
)
from backends.native.multimodal.resizing import begins_with_resize, by_color
from backends.native.multimodal.updates import NoPlace, PromptUpdate, apply_update
from schemas.errors import InvalidRequest


class NotServed(Exception):
    """A model takes pictures, and we cannot serve them rightly; the text says why."""


class BaseProcessingInfo(ABC):
    """What a checkpoint says about its pictures.

    Args:
        folder: of the checkpoint.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @classmethod
    def covers(cls, hf_config: Any) -> bool:  # noqa: ARG003
        """Whether what is known of the model's class holds for this one of its configurations."""
        return True

    @cached_property
    def hf_config(self) -> Any:
        """The checkpoint's configuration."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)

    @cached_property
    def image_processor(self) -> Any:
        """The checkpoint's image processor, over Pillow and numpy."""
        from transformers import AutoImageProcessor
        from transformers.image_processing_backends import PilBackend

        made = AutoImageProcessor.from_pretrained(self.folder, backend="pil", local_files_only=True)
        if not isinstance(made, PilBackend):
            return made
        return by_color(type(made)).from_pretrained(self.folder, local_files_only=True)

    @cached_property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer; not for threads."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder, local_files_only=True)

    def get_placeholder_str(self) -> str:
        """What a raw prompt says where a picture is; empty if pictures need no place."""
        return ""

    @abstractmethod
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """The most items of each modality in one prompt; None is any number."""

    @abstractmethod
    def get_image_size_with_most_features(self) -> ImageSize:
        """The picture that takes the most placeholder tokens."""


Info = TypeVar("Info", bound=BaseProcessingInfo)


class BaseDummyInputsBuilder(ABC, Generic[Info]):
    """The worst case, to measure memory with."""

    def __init__(self, info: Info) -> None:
        self.info = info

    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> list[DecodedImage]:
        """The pictures of such a request."""
        width, height = self.info.get_image_size_with_most_features()
        return [
            DecodedImage(width, height, bytearray(width * height * 3), b"dummy")
            for _ in range(mm_counts.get("image", 0))
        ]

    @abstractmethod
    def get_dummy_tokens(self, mm_counts: Mapping[str, int]) -> list[int]:
        """A prompt with places for them."""


class BaseMultiModalProcessor(ABC, Generic[Info]):
    """From pictures to arrays, and from a prompt to one with placeholders."""

    def __init__(self, info: Info) -> None:
        self.info = info

    def _call_hf_processor(self, images: Sequence[Any], mm_kwargs: Mapping[str, object]) -> Arrays:
        """What the image processor makes of `images`, each `[height, width, 3]` of bytes."""
        made = self.info.image_processor(
            list(images), return_tensors="np", input_data_format="channels_last", **mm_kwargs
        )
        return dict(made)

    @abstractmethod
    def _get_mm_fields_config(self, hf_inputs: Arrays) -> Mapping[str, MultiModalFieldConfig]:
        """Which of its outputs go to the encoder."""

    @abstractmethod
    def _get_prompt_updates(self, items: Sequence[ImageItem]) -> PromptUpdate:
        """Where items go and as which tokens."""

    def _apply_hf_processor_tokens_only(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        """What the model's processor does to every prompt, whatever items it has."""
        return prompt_ids

    def _get_resize_kwargs(self) -> Mapping[str, object] | None:
        """What the image processor's `resize` is given beside size and filter, if it is all that ever sees a picture
        as large as it came; else None.
        """
        return {} if begins_with_resize(self.info.image_processor) else None

    def process(self, picture: DecodedImage) -> ImageItem:
        """One picture. Its bytes may be gone after it."""
        size = ImageSize(picture.width, picture.height)
        made = self._call_hf_processor(*self._taken(picture))
        fields = self._get_mm_fields_config(made)
        arrays = {name: field.check(name, np.asarray(made[name])) for name, field in fields.items()}
        return ImageItem(size, arrays, picture.digest)

    def _taken(self, picture: DecodedImage) -> tuple[list[Any], Mapping[str, object]]:
        """Its pixels for the image processor: resized already where they can be, and then nothing else is kept."""
        pixels = np.frombuffer(picture.rgb, np.uint8).reshape(picture.height, picture.width, 3)
        processor, kwargs = self.info.image_processor, self._get_resize_kwargs()
        if kwargs is None or not processor.do_resize:
            return [pixels], {}
        image = np.moveaxis(pixels, -1, 0)
        resized = processor.resize(image=image, size=processor.size, resample=processor.resample, **kwargs)
        if not np.may_share_memory(resized, pixels):
            del pixels, image
            picture.rgb.clear()
        return [np.moveaxis(resized, 0, -1)], {"do_resize": False}

    def apply(self, prompt_ids: Sequence[int], items: Sequence[ImageItem]) -> MultiModalInputs:
        """A prompt with its pictures.

        Args:
            prompt_ids: its tokens.
            items: its pictures, in order.

        Raises:
            schemas.errors.InvalidRequest: too many pictures, or the chat template left no place for one.
        """
        self._check_count(len(items))
        update = self._get_prompt_updates(items)
        ids = self._apply_hf_processor_tokens_only(prompt_ids)
        try:
            updated, places = apply_update(ids, update, len(items))
        except NoPlace as error:
            raise InvalidRequest("The model's chat template has no place for one of the images.") from error
        features = (
            make_feature(item, place.offset, place.details.is_embed) for item, place in zip(items, places, strict=True)
        )
        return MultiModalInputs(tuple(updated), tuple(features))

    def _check_count(self, count: int) -> None:
        most = self.info.get_supported_mm_limits().get("image", 0)
        if most is not None and count > most:
            raise InvalidRequest(
                f"At most {most} image{'s' * (most != 1)} may be provided in one prompt.", param="images"
            )
