"""Embeddings of an image that a client has computed: read from its files, and checked before the engine merges them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.images import EmbeddingsFile
from backends.native.multimodal.inputs import EMBEDDINGS, Arrays
from backends.native.multimodal.tensors import BadTensor, read_tensor
from schemas.errors import InvalidRequest

GRID = "image_grid_thw"
"""The field with an image's patches in time, rows and columns (Qwen2-VL)."""

_LARGEST = 16384.0
"""A quarter of the greatest float16, so that sums of the model's layers stay finite in every type: infinite values
would stay in the memory of the KV cache when the request has ended. No encoder's output comes near it."""
_LONGEST_SIDE = 1 << 16


def read_embeddings(file: EmbeddingsFile, width: int) -> Arrays:
    """The fields of an image: embeddings, [tokens, width] of float32, and if there is a grid, [1, 3] of int64.

    Raises:
        schemas.errors.InvalidRequest: a file cannot be read, or its tensor has a wrong shape or wrong values.
    """
    found = _read(EMBEDDINGS, file.data)
    # vLLM's clients send one image with or without the dimension of images.
    rows = found[0] if found.ndim == 3 and len(found) == 1 else found
    if rows.ndim != 2 or rows.shape[1] != width or not len(rows) or rows.dtype.kind != "f":
        kind = "integers" if rows.dtype.kind != "f" else "numbers"
        raise InvalidRequest(
            f"'{EMBEDDINGS}' has {kind} of shape {list(found.shape)}; "
            f"the model takes floating-point numbers of shape [tokens, {width}]."
        )
    # A comparison with a value that is not a number is false, too.
    if not (np.abs(rows) <= _LARGEST).all():
        raise InvalidRequest(f"'{EMBEDDINGS}' has values that are not finite, or beyond {_LARGEST:.0f}.")
    return {EMBEDDINGS: rows} | ({} if file.grid is None else {GRID: _read_grid(file.grid)})


def _read_grid(data: bytes) -> NDArray[Any]:
    found = _read(GRID, data)
    grid = found.reshape(1, -1) if found.size == 3 else found
    if (
        grid.shape != (1, 3)
        or grid.dtype.kind != "i"
        or grid[0, 0] != 1
        or not ((grid > 0) & (grid < _LONGEST_SIDE)).all()
    ):
        raise InvalidRequest(
            f"'{GRID}' must be the three integers 1, rows and columns of an image's patches; "
            f"it has the shape {list(found.shape)}."
        )
    return grid


def _read(name: str, data: bytes) -> NDArray[Any]:
    try:
        return read_tensor(data)
    except BadTensor as error:
        raise InvalidRequest(f"'{name}' cannot be read: {error}.") from error
