"""The base classes that describe a model's images: its limits, its worst case, and how an image becomes tokens.

They use transformers' image processor only, not `AutoProcessor`, which needs torchvision for every model that also
takes videos. The prompt is updated here, as token ids. Runs in the worker, without torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from backends.images import DecodedImage, EmbeddingsFile
from backends.native.multimodal.data import MultiModalDataDict, read_data
from backends.native.multimodal.embeddings import GRID, read_embeddings
from backends.native.multimodal.inputs import (
    EMBEDDINGS,
    Arrays,
    ImageEmbeddingItems,
    ImageItem,
    ImageProcessorItems,
    ImageSize,
    MultiModalDataItems,
    MultiModalFieldConfig,
    MultiModalInputs,
    MultiModalKwargs,
    make_feature,
)
from backends.native.multimodal.resizing import begins_with_resize, resizing_by_channel
from backends.native.multimodal.updates import PlaceholderMissing, PromptUpdate, apply_updates
from schemas.errors import InvalidRequest, UnsupportedFeature

# Strategy: `process` depends on the image alone, so its result can be cached, and runs in a thread. `apply` depends on
# the prompt, works on token ids only and is cheap. transformers' processors do both in one call and need the prompt's
# text.


class NotServed(Exception):
    """A model takes images that cannot be served correctly; the text says why."""


class BaseProcessingInfo(ABC):
    """A checkpoint's facts about images.

    Args:
        folder: of the checkpoint.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @classmethod
    def covers(cls, hf_config: Any) -> bool:  # noqa: ARG003
        """Whether the registered classes support this configuration of the model's class."""
        return True

    def get_hf_config(self) -> Any:
        """The checkpoint's configuration."""
        return self._hf_config

    def get_hf_processor(self) -> Any:
        """The checkpoint's processor, without its parts for videos and audio.

        Raises:
            NotServed: it has none, or it cannot be built without these parts.
        """
        return self._hf_processor

    def get_image_processor(self) -> Any:
        """The checkpoint's image processor, on Pillow and numpy."""
        return self._image_processor

    def get_tokenizer(self) -> Any:
        """The checkpoint's tokenizer; not thread-safe."""
        return self._tokenizer

    @cached_property
    def _hf_config(self) -> Any:
        from transformers import AutoConfig

        # Never the network, never code of the checkpoint.
        return AutoConfig.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)

    @cached_property
    def _hf_processor(self) -> Any:
        from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

        found = PROCESSOR_MAPPING.get(type(self.get_hf_config()), None)
        if found is None:
            raise NotServed("transformers has no processor for it")
        parts = {"image_processor": self.get_image_processor(), "tokenizer": self.get_tokenizer()}
        # The constructor takes its parts in this order; None stands for parts that images do not need.
        arguments = [parts.get(name) for name in found.get_attributes()]
        values, _ = found.get_processor_dict(self.folder, local_files_only=True)
        try:
            return _without_missing_parts(found).from_args_and_dict(arguments, values)
        except Exception as error:  # foreign classes raise anything if a part is missing
            raise NotServed(f"its processor cannot be built: {error}") from error

    @cached_property
    def _image_processor(self) -> Any:
        # Not from `transformers`: that of 5.17 has it only if torchvision is installed, which the class does not need.
        from transformers.image_processing_backends import PilBackend
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        # Loaded twice: the first load finds the class, of which a subclass is then made. Processors of the older base
        # class, which have no `PilBackend`, are used as they are.
        processor = AutoImageProcessor.from_pretrained(self.folder, backend="pil", local_files_only=True)
        if not isinstance(processor, PilBackend):
            return processor
        return resizing_by_channel(type(processor)).from_pretrained(self.folder, local_files_only=True)

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder, local_files_only=True)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without the special tokens that a tokenizer adds."""
        ids: list[int] = self.get_tokenizer().encode(text, add_special_tokens=False)
        return ids

    def get_placeholder_str(self) -> str:
        """The text that marks an image's place in a raw prompt; empty if images need none."""
        return ""

    @abstractmethod
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """The maximum number of items per prompt by modality; None: unlimited."""

    @abstractmethod
    def get_image_size_with_most_features(self) -> ImageSize:
        """The size of the image with the most placeholder tokens."""


Info = TypeVar("Info", bound=BaseProcessingInfo)


class BaseDummyInputsBuilder(ABC, Generic[Info]):
    """Builds the request with the most image tokens, to measure memory with."""

    def __init__(self, info: Info) -> None:
        self.info = info

    @abstractmethod
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """The text of a prompt with a placeholder for each image."""

    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int]) -> MultiModalDataDict:  # noqa: ARG002
        """The images of the request. `seq_len`: tokens that a prompt may have."""
        width, height = self.info.get_image_size_with_most_features()
        return {"image": self._get_dummy_images(width=width, height=height, num_images=mm_counts.get("image", 0))}

    def _get_dummy_images(self, *, width: int, height: int, num_images: int) -> list[DecodedImage]:
        return [DecodedImage(width, height, bytearray(width * height * 3), b"dummy") for _ in range(num_images)]

    def get_dummy_tokens(self, mm_counts: Mapping[str, int]) -> list[int]:
        """The token ids of the dummy text."""
        return self.info.encode(self.get_dummy_text(mm_counts))


class BaseMultiModalProcessor(ABC, Generic[Info]):
    """Processes images, and puts their placeholder tokens into prompts."""

    def __init__(self, info: Info) -> None:
        self.info = info

    def _call_hf_processor(self, prompt: str, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, object]) -> Arrays:  # noqa: ARG002
        """Call the image processor.

        Args:
            prompt: empty: images are processed apart from the prompt, so that the result can be cached.
            mm_data: `images`, a list of one image [height, width, 3] of uint8.
            mm_kwargs: more arguments.
        """
        # The layout is stated, not inferred: transformers would take an image 1 or 3 pixels high for one with the
        # channels first.
        outputs = self.info.get_image_processor()(
            list(mm_data["images"]), return_tensors="np", input_data_format="channels_last", **mm_kwargs
        )
        return dict(outputs)

    @abstractmethod
    def _get_mm_fields_config(
        self, hf_inputs: Arrays, hf_processor_mm_kwargs: Mapping[str, object]
    ) -> Mapping[str, MultiModalFieldConfig]:
        """The image processor's outputs that the encoder takes."""

    @abstractmethod
    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, object],
        out_mm_kwargs: MultiModalKwargs,
    ) -> Sequence[PromptUpdate]:
        """The places and the placeholder tokens of items.

        Args:
            mm_items: the prompt's.
            hf_processor_mm_kwargs: empty: clients cannot set arguments of the processor.
            out_mm_kwargs: the processed fields.
        """

    def _apply_hf_processor_tokens_only(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        """Apply what the model's processor does to every prompt, with and without items."""
        return prompt_ids

    def _get_resize_kwargs(self) -> Mapping[str, object] | None:
        """Additional arguments of the image processor's `resize`; None if another step sees the original pixels, so
        that images cannot be resized beforehand.
        """
        return {} if begins_with_resize(self.info.get_image_processor()) else None

    def process(self, image: DecodedImage) -> ImageItem:
        """Process one image. Its pixels may be freed meanwhile."""
        size = ImageSize(image.width, image.height)
        images, kwargs = self._resized(image)
        outputs = self._call_hf_processor("", {"images": images}, kwargs)
        return ImageItem(size, self._fields(outputs, kwargs), image.digest)

    def process_embeddings(self, file: EmbeddingsFile) -> ImageItem:
        """Take the embeddings of one image as the client sent them, if `image_embeds` is among the model's fields.

        Raises:
            schemas.errors.InvalidRequest: they cannot be read, or are not this model's.
            schemas.errors.UnsupportedFeature: the model takes none.
        """
        arrays = read_embeddings(file, self.info.get_hf_config().get_text_config().hidden_size)
        fields = self._get_mm_fields_config(arrays, {})
        if EMBEDDINGS not in fields:
            raise UnsupportedFeature(f"The model takes images, but no '{EMBEDDINGS}'.", feature=EMBEDDINGS)
        if (GRID in fields) != (GRID in arrays):
            said = "needs" if GRID in fields else "takes no"
            raise InvalidRequest(f"The model {said} '{GRID}' beside '{EMBEDDINGS}'.")
        return ImageItem(ImageSize(0, 0), arrays, file.digest)

    def process_data(self, mm_data: MultiModalDataDict) -> list[ImageItem]:
        """Process the items of all modalities, in the order of `read_data`; frames of videos are images.

        Raises:
            schemas.errors.UnsupportedFeature: a modality is not `image` or `video`, or the model takes no embeddings.
            schemas.errors.InvalidRequest: embeddings are not this model's.
            TypeError: an item is of no form that is known.
        """
        return [
            self.process_embeddings(each) if isinstance(each, EmbeddingsFile) else self.process(each)
            for each in read_data(mm_data)
        ]

    def _fields(self, outputs: Arrays, kwargs: Mapping[str, object]) -> Arrays:
        """The outputs of the processor that the encoder takes."""
        fields = self._get_mm_fields_config(outputs, kwargs)
        # A configured field may be absent: the guide's models configure `image_embeds`, too.
        return {name: field.check(name, np.asarray(outputs[name])) for name, field in fields.items() if name in outputs}

    def _resized(self, image: DecodedImage) -> tuple[list[Any], Mapping[str, object]]:
        """The pixels and arguments for the image processor; where possible resized, and the original pixels freed."""
        # A view of the decoder's buffer, no copy.
        pixels = np.frombuffer(image.rgb, np.uint8).reshape(image.height, image.width, 3)
        processor, kwargs = self.info.get_image_processor(), self._get_resize_kwargs()
        if kwargs is None or not processor.do_resize:
            return [pixels], {}
        # Also a view: transformers' `resize` takes [channels, height, width].
        channels = np.moveaxis(pixels, -1, 0)
        resized = processor.resize(image=channels, size=processor.size, resample=processor.resample, **kwargs)
        # `resize` may return its argument if the size is right. Otherwise the original pixels are freed now, before the
        # processor makes float arrays: a bytearray can be cleared only without views, hence the `del`.
        if not np.may_share_memory(resized, pixels):
            del pixels, channels
            image.rgb.clear()
        # The processor must not resize again: its other steps see the pixels that they would have seen.
        return [np.moveaxis(resized, 0, -1)], {"do_resize": False}

    def apply(self, prompt_ids: Sequence[int], items: Sequence[ImageItem]) -> MultiModalInputs:
        """Put the placeholder tokens of `items`, in order, into a prompt.

        Raises:
            schemas.errors.InvalidRequest: too many images, or the chat template left no place for one.
        """
        # The steps: count, tokens of each item, the model's own changes to the prompt, then the items' tokens in their
        # places.
        self._check_count(len(items))
        mm_items = MultiModalDataItems(image=_of_one_kind(items))
        updates = self._get_prompt_updates(mm_items, {}, _kwargs(items))
        ids = self._apply_hf_processor_tokens_only(prompt_ids)
        try:
            updated, places = apply_updates(ids, updates, mm_items.get_all_counts(), self.info.encode)
        except PlaceholderMissing as error:
            raise InvalidRequest("The model's chat template has no place for one of the images.") from error
        for number, (item, place) in enumerate(zip(items, places, strict=True)):
            _check_embeddings(item, sum(place.details.is_embed), number)
        features = (
            make_feature(item, place.offset, place.details.is_embed) for item, place in zip(items, places, strict=True)
        )
        return MultiModalInputs(tuple(updated), tuple(features))

    def _check_count(self, count: int) -> None:
        limit = self.info.get_supported_mm_limits().get("image", 0)
        if limit is not None and count > limit:
            raise InvalidRequest(
                f"At most {limit} image{'s' * (limit != 1)} may be provided in one prompt.", param="images"
            )


def _of_one_kind(items: Sequence[ImageItem]) -> ImageProcessorItems | ImageEmbeddingItems:
    sent = [EMBEDDINGS in item.arrays for item in items]
    if any(sent) and not all(sent):
        raise InvalidRequest(f"Images and '{EMBEDDINGS}' cannot be mixed in one prompt.", param="images")
    return ImageEmbeddingItems(items) if any(sent) else ImageProcessorItems(items)


def _check_embeddings(item: ImageItem, tokens: int, number: int) -> None:
    """Refuse embeddings that a client sent if they are not as many as the image's placeholder tokens."""
    count = len(item.arrays.get(EMBEDDINGS, ())) or tokens
    if count != tokens:
        message = f"'{EMBEDDINGS}' has {count} embeddings; the model takes {tokens} for this image."
        raise InvalidRequest(message, param=f"images[{number}]")


def _kwargs(items: Sequence[ImageItem]) -> MultiModalKwargs:
    return {name: [item.arrays[name] for item in items] for name in (items[0].arrays if items else ())}


def _without_missing_parts(found: Any) -> Any:
    """A subclass of the processor that accepts None for a part; the original check fails without torchvision."""

    def check(self: Any, name: str, part: Any) -> Any:
        return None if part is None else found.check_argument_for_proper_class(self, name, part)

    return type(found.__name__, (found,), {"check_argument_for_proper_class": check})
