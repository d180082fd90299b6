"""Embedding vectors in base64, as the official SDKs request them: little-endian 32-bit floats."""

from __future__ import annotations

import base64
import sys
from array import array


def encode_vector(vector: tuple[float, ...]) -> str:
    """The base64 of a vector's numbers, rounded to 32-bit floats."""
    # `array` converts in one C loop; `struct.pack` would need an argument for each number.
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def decode_vector(data: str) -> tuple[float, ...]:
    """The numbers of a vector in base64.

    Raises:
        ValueError: it is not base64, or not of whole 32-bit floats.
    """
    numbers = array("f")
    # `validate`: without it, characters outside of the alphabet would be skipped, and the vector be shorter than sent.
    numbers.frombytes(base64.b64decode(data, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return tuple(numbers)
