"""The data of image processing: images, arrays for the encoder, placeholder tokens. No torch, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from backends.native.protocol.messages import Array, Feature

EMBEDDINGS = "image_embeds"
"""The field that holds embeddings of an image in place of pixels."""

Arrays = Mapping[str, NDArray[Any]]

MultiModalKwargs = Mapping[str, Sequence[NDArray[Any]]]
"""The encoder's keyword arguments, by name: one array for each item of a request."""


class ImageSize(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


@dataclass(frozen=True, slots=True, eq=False)
class ImageItem:
    """A processed image of a request.

    Attributes:
        size: of the decoded image; 0x0 if the client sent its embeddings.
        arrays: the image processor's output, with batch dimensions: the encoder's keyword arguments.
        identifier: a digest of the file.
        tokens: its placeholder tokens, if the processor returns them.
    """

    size: ImageSize
    arrays: Arrays
    identifier: bytes
    tokens: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """The size of its arrays in bytes."""
        return sum(array.nbytes for array in self.arrays.values())


class ImageEmbeddingItems(tuple[ImageItem, ...]):
    """The images of a prompt for which the client sent embeddings."""

    __slots__ = ()

    def get(self, index: int) -> ImageItem:
        """The image with this index."""
        return self[index]

    def get_feature_size(self, index: int) -> int:
        """The number of an image's embeddings."""
        return len(self[index].arrays[EMBEDDINGS])


class ImageProcessorItems(tuple[ImageItem, ...]):
    """The processed images of a prompt."""

    __slots__ = ()

    def get(self, index: int) -> ImageItem:
        """The image with this index."""
        return self[index]

    def get_image_size(self, index: int) -> ImageSize:
        """The size of a decoded image."""
        return self[index].size


_Items = TypeVar("_Items")


class MultiModalDataItems(dict[str, ImageProcessorItems | ImageEmbeddingItems]):
    """The processed items of a prompt, by modality."""

    __slots__ = ()

    def get_items(self, modality: str, kind: type[_Items] | tuple[type[_Items], ...]) -> _Items:
        """The items of a modality.

        Raises:
            TypeError: they are not of this kind, or of one of these kinds.
        """
        found = self.get(modality, ImageProcessorItems())
        if not isinstance(found, kind):
            raise TypeError(f"the items of '{modality}' are {type(found).__name__}, not {kind}")
        return found

    def get_count(self, modality: str) -> int:
        """The number of items of a modality."""
        return len(self.get(modality, ()))

    def get_all_counts(self) -> Mapping[str, int]:
        """The number of items of each modality."""
        return {modality: len(items) for modality, items in self.items()}


@dataclass(frozen=True, slots=True)
class MultiModalFieldConfig:
    """The layout of one output of the image processor. Outputs without a configuration are dropped.

    Images are processed one at a time: a processor that pads a batch would make an image's arrays depend on the other
    images. So outputs are not split among images, only checked.
    """

    modality: str
    layout: Literal["batched", "flat"]

    @classmethod
    def batched(cls, modality: str) -> MultiModalFieldConfig:
        """`[items, ...]`: one entry per item."""
        return cls(modality, "batched")

    @classmethod
    def flat(cls, modality: str) -> MultiModalFieldConfig:
        """`[patches, ...]`: the patches of all items, concatenated."""
        return cls(modality, "flat")

    def check(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        """Return the output of one item unchanged.

        Raises:
            ValueError: it has entries for more or fewer than one item.
        """
        # Flat outputs have as many entries as the image has patches, so nothing can be checked.
        if self.layout == "batched" and value.shape[0] != 1:
            raise ValueError(f"the image processor made {value.shape[0]} '{name}' of one image")
        return value


@dataclass(frozen=True, slots=True)
class MultiModalInputs:
    """A prompt for the engine: token ids with expanded placeholders, and the images that they represent."""

    prompt_token_ids: tuple[int, ...]
    features: tuple[Feature, ...] = ()


def make_feature(item: ImageItem, offset: int, is_embed: Sequence[bool]) -> Feature:
    """The message for an item whose placeholder tokens begin at `offset`; `is_embed` marks those to be replaced."""
    arrays = tuple(
        # `tobytes` copies: the processor cache keeps the arrays, and a message has bytes.
        Array(name, value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
        for name, value in item.arrays.items()
    )
    # Empty instead of a byte per token where all are embeddings, as for most models.
    return Feature(item.identifier, offset, len(is_embed), b"" if all(is_embed) else bytes(is_embed), arrays)
