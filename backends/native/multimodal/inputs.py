"""What goes through processing: pictures in, arrays and ranges of placeholder tokens out. No torch, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.native.protocol.messages import Array, Feature

Arrays = Mapping[str, NDArray[Any]]


class ImageSize(NamedTuple):
    """In pixels."""

    width: int
    height: int


@dataclass(frozen=True, slots=True, eq=False)
class ImageItem:
    """One picture of a request, processed.

    Attributes:
        size: as decoded.
        arrays: what the image processor made of it, batch dimensions included: the encoder's keyword arguments.
        identifier: names its content; equal only for equal files.
        tokens: what stands for it in a prompt, of processors that tell.
    """

    size: ImageSize
    arrays: Arrays
    identifier: bytes
    tokens: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """What it takes to keep it."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True, slots=True)
class MultiModalFieldConfig:
    """How an output of the image processor belongs to its picture. Outputs without one are dropped.

    Pictures are processed one at a time, since processors that pad a batch would make one picture's arrays depend on
    its neighbours; so there is nothing to split, only to check.
    """

    modality: str
    layout: Literal["batched", "flat"]

    @classmethod
    def batched(cls, modality: str) -> MultiModalFieldConfig:
        """`[items, ...]`: one entry for each item."""
        return cls(modality, "batched")

    @classmethod
    def flat(cls, modality: str) -> MultiModalFieldConfig:
        """`[patches, ...]`: the patches of all items, one after another."""
        return cls(modality, "flat")

    def check(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        """The output of one item, as it is."""
        if self.layout == "batched" and value.shape[0] != 1:
            raise ValueError(f"the image processor made {value.shape[0]} '{name}' of one image")
        return value


@dataclass(frozen=True, slots=True)
class MultiModalInputs:
    """A prompt ready for the engine: placeholders expanded, and which of them are which picture."""

    prompt_token_ids: tuple[int, ...]
    features: tuple[Feature, ...] = ()


def make_feature(item: ImageItem, offset: int, is_embed: Sequence[bool]) -> Feature:
    """The message about an item whose placeholder begins at `offset`; `is_embed` says which tokens are embeddings."""
    arrays = tuple(
        Array(name, value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
        for name, value in item.arrays.items()
    )
    return Feature(item.identifier, offset, len(is_embed), b"" if all(is_embed) else bytes(is_embed), arrays)
