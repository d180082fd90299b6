"""The data of image processing: images, arrays for the encoder, placeholder tokens. No torch, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.native.protocol.messages import Array, Feature

Arrays = Mapping[str, NDArray[Any]]


class ImageSize(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


@dataclass(frozen=True, slots=True, eq=False)
class ImageItem:
    """A processed image of a request.

    Attributes:
        size: of the decoded image.
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
