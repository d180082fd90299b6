"""The tensors of a text model: inputs, outputs, their names in an endpoint, and their bytes.

Names and shapes are those of Triton's vLLM backend. An endpoint may rename tensors (`schemas.catalog.TensorNames`), as
models in Triton repositories do; all other modules use the usual names.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from schemas.catalog import ModelCard


class Tensor(msgspec.Struct, frozen=True):
    """An input or output; -1 in `dims` stands for any size."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = True


# `text_input` takes any number of texts (in vLLM's backend one), so that one infer request may have several prompts.
INPUTS = (
    Tensor("text_input", "BYTES", (-1,), optional=False),
    Tensor("image", "BYTES", (-1,)),
    Tensor("stream", "BOOL", (1,)),
    Tensor("sampling_parameters", "BYTES", (1,)),
    Tensor("exclude_input_in_output", "BOOL", (1,)),
    Tensor("return_finish_reason", "BOOL", (1,)),
    Tensor("return_cumulative_logprob", "BOOL", (1,)),
    Tensor("return_logprobs", "BOOL", (1,)),
    Tensor("return_num_input_tokens", "BOOL", (1,)),
    Tensor("return_num_output_tokens", "BOOL", (1,)),
)

OUTPUTS = (
    Tensor("text_output", "BYTES", (-1,)),
    Tensor("finish_reason", "BYTES", (-1,)),
    Tensor("cumulative_logprob", "FP32", (-1,)),
    Tensor("logprobs", "BYTES", (-1,)),
    Tensor("num_input_tokens", "UINT32", (1,)),
    Tensor("num_output_tokens", "UINT32", (-1,)),
)

DATATYPES = {tensor.name: tensor.datatype for tensor in INPUTS + OUTPUTS}

_INPUTS = {tensor.name: tensor for tensor in INPUTS}
_OUTPUTS = {tensor.name: tensor for tensor in OUTPUTS}
# `struct` codes; with "<" BOOL is 1 byte, UINT32 and FP32 are 4.
_FORMATS = {"BOOL": "?", "UINT32": "I", "FP32": "f"}


def inputs(card: ModelCard) -> dict[str, Tensor]:
    """The endpoint's inputs, by the endpoint's names."""
    return _renamed(_INPUTS, card.tensors.inputs)


def outputs(card: ModelCard) -> dict[str, Tensor]:
    """The endpoint's outputs, by the endpoint's names."""
    return _renamed(_OUTPUTS, card.tensors.outputs)


def _renamed(tensors: dict[str, Tensor], own_names: dict[str, str]) -> dict[str, Tensor]:
    if not own_names:
        return tensors
    # The configuration maps own names to usual ones; here the direction is reversed.
    names = {usual: own for own, usual in own_names.items()}
    return {names.get(usual, usual): tensor for usual, tensor in tensors.items()}


def pack(datatype: str, values: list[Any]) -> bytes:
    """The elements in Triton's binary form: little-endian, strings after their length in 4 bytes."""
    if datatype != "BYTES":
        return struct.pack(f"<{len(values)}{_FORMATS[datatype]}", *values)
    texts = [value.encode() for value in values]
    return b"".join(part for text in texts for part in (struct.pack("<I", len(text)), text))


def unpack(datatype: str, data: bytes) -> list[Any]:
    """The inverse of `pack`.

    Raises:
        ValueError: the bytes are not a whole number of elements, or a string is not UTF-8.
    """
    if datatype == "BYTES":
        return _unpack_texts(data)
    code = _FORMATS[datatype]
    size = struct.calcsize(code)
    if len(data) % size:
        raise ValueError(f"{len(data)} bytes are not a whole number of {datatype} elements")
    return list(struct.unpack(f"<{len(data) // size}{code}", data))


def _unpack_texts(data: bytes) -> list[str]:
    texts = []
    at = 0
    while at < len(data):
        # Each string is a little-endian uint32, its length in bytes, and then the bytes. Both ends are checked before
        # slicing, because a slice beyond the end would be silently short.
        start = at + 4
        if start > len(data):
            raise ValueError(f"expecting 4 bytes of string length indicator but only {len(data) - at} bytes available")
        at = start + int.from_bytes(data[at:start], "little")
        if at > len(data):
            raise ValueError(f"expecting a string of {at - start} bytes but only {len(data) - start} bytes available")
        texts.append(data[start:at].decode())
    return texts
