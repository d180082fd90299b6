"""Items before processing, in the forms that vLLM's guide has for `MultiModalDataDict`.

By modality: `image` and `video`, one item or a list. An image is pixels, or embeddings that stand for it; a video is
its frames, which the models see as so many images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.images import DecodedImage, EmbeddingsFile
from backends.native.multimodal.embeddings import GRID
from backends.native.multimodal.inputs import EMBEDDINGS
from schemas.errors import UnsupportedFeature

ModalityData = Any
"""Of `image`: a `DecodedImage`, a PIL image, an array [height, width, 3] of uint8, an array [tokens, hidden] or
[images, tokens, hidden] of floating-point numbers (embeddings), a mapping with `image_embeds` and perhaps
`image_grid_thw`, or a list of these. Of `video`: the frames of a video, each as an image, an array [frames, height,
width, 3], or a list of videos. Arrays may be tensors on the CPU."""

MultiModalDataDict = Mapping[str, ModalityData]


def read_data(data: MultiModalDataDict) -> Iterator[DecodedImage | EmbeddingsFile]:
    """The images of all modalities in order, those of `image` first; frames of videos are images.

    Raises:
        schemas.errors.UnsupportedFeature: a modality is not `image` or `video`.
        TypeError: an item is of no form that is known.
    """
    for modality in data:
        if modality not in (*_READERS, EMBEDDINGS):
            raise UnsupportedFeature(f"The models here take images and videos, and no '{modality}'.", feature=modality)
    embeddings = data.get(EMBEDDINGS)
    if embeddings is not None:
        yield from _images({EMBEDDINGS: embeddings})
    for modality, read in _READERS.items():
        if data.get(modality) is not None:
            yield from read(data[modality])


def _images(value: ModalityData) -> Iterator[DecodedImage | EmbeddingsFile]:
    if isinstance(value, Mapping):
        if EMBEDDINGS not in value:
            raise TypeError(f"an image with fields has '{EMBEDDINGS}'")
        grids = value.get(GRID)
        rows = _several(_array(value[EMBEDDINGS]), 3)
        for place, each in enumerate(rows):
            yield _embeddings(each, None if grids is None else _several(_array(grids), 2)[place])
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for each in value:
            yield from _images(each)
    elif isinstance(value, DecodedImage):
        yield value
    else:
        array = _array(value)
        if array.dtype.kind == "f":
            yield from map(_embeddings, _several(array, 3))
        else:
            yield from map(_pixels, _several(array, 4))


def _videos(value: ModalityData) -> Iterator[DecodedImage | EmbeddingsFile]:
    for frame in _images(value):
        if not isinstance(frame, DecodedImage):
            raise TypeError("a video is its frames, not embeddings")
        yield frame


_READERS = {"image": _images, "video": _videos}


def _array(value: Any) -> NDArray[Any]:
    """The array of an image, an array or a tensor."""
    # PIL's images convert to RGB; palettes and transparency are the author's business in all other forms.
    array = np.asarray(value.convert("RGB") if hasattr(value, "convert") else value)
    if array.dtype.kind not in "fiu" or not array.size:
        raise TypeError(f"{type(value).__name__} is no image, and no embeddings of one")
    return array


def _several(array: NDArray[Any], dimensions: int) -> list[NDArray[Any]]:
    """The items of an array with a dimension for them, or the one item that it is."""
    return list(array) if array.ndim == dimensions else [array]


def _pixels(array: NDArray[Any]) -> DecodedImage:
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
        raise TypeError(f"an image is [height, width, 3] of uint8, not {list(array.shape)} of {array.dtype}")
    pixels = array.tobytes()
    height, width = array.shape[:2]
    digest = blake2b(b"%d %d " % (width, height) + pixels, digest_size=32).digest()
    return DecodedImage(width, height, bytearray(pixels), digest)


def _embeddings(rows: NDArray[Any], grid: NDArray[Any] | None = None) -> EmbeddingsFile:
    data, sides = _file(rows), None if grid is None else _file(grid)
    return EmbeddingsFile(data, sides, blake2b(data + (sides or b""), digest_size=32).digest())


def _file(array: NDArray[Any]) -> bytes:
    file = BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
