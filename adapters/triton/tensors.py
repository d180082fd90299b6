"""The tensors of a text model: inputs, outputs, their names in an endpoint, and their bytes.

Names and shapes are those of Triton's vLLM backend and of TensorRT-LLM's models. An endpoint may rename tensors and
declare inputs (`schemas.catalog.TensorNames`), as models in Triton repositories do; all other modules use the usual
names. Sources: triton-inference-server/vllm_backend and triton-inference-server/tensorrtllm_backend (config.pbtxt of
`ensemble` and `tensorrt_llm_bls`).
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.catalog import ModelCard


class Tensor(msgspec.Struct, frozen=True):
    """An input or output; -1 in `dims` stands for any size.

    `parameter` is the request parameter that an input stands for. `asked_by` is the input that asks for an output; ""
    if answers have it anyway. `own` marks an input that the endpoint declares.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = True
    parameter: str = ""
    asked_by: str = ""
    own: bool = False


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
    # TensorRT-LLM's from here on. Token ids take the place of the text; `request_output_len` comes with them.
    Tensor("input_ids", "INT32", (-1,)),
    Tensor("input_lengths", "INT32", (1,)),
    Tensor("request_output_len", "INT32", (1,), parameter="max_tokens"),
    Tensor("max_tokens", "INT32", (1,), parameter="max_tokens"),
    Tensor("min_tokens", "INT32", (1,), parameter="min_tokens"),
    Tensor("temperature", "FP32", (1,), parameter="temperature"),
    Tensor("top_k", "INT32", (1,), parameter="top_k"),
    Tensor("top_p", "FP32", (1,), parameter="top_p"),
    Tensor("random_seed", "UINT64", (1,), parameter="seed"),
    Tensor("repetition_penalty", "FP32", (1,), parameter="repetition_penalty"),
    Tensor("presence_penalty", "FP32", (1,), parameter="presence_penalty"),
    Tensor("frequency_penalty", "FP32", (1,), parameter="frequency_penalty"),
    Tensor("stop_words", "BYTES", (-1,), parameter="stop_words"),
    Tensor("bad_words", "BYTES", (-1,), parameter="bad_words"),
    Tensor("num_return_sequences", "INT32", (1,), parameter="n"),
    Tensor("end_id", "INT32", (1,), parameter="end_id"),
    Tensor("pad_id", "INT32", (1,), parameter="pad_id"),
    Tensor("beam_width", "INT32", (1,), parameter="beam_width"),
    Tensor("length_penalty", "FP32", (1,), parameter="length_penalty"),
    Tensor("early_stopping", "BOOL", (1,), parameter="early_stopping"),
    Tensor("return_log_probs", "BOOL", (1,)),
    Tensor("return_context_logits", "BOOL", (1,)),
    Tensor("return_generation_logits", "BOOL", (1,)),
)
UNSUPPORTED_FLAGS = ("return_context_logits", "return_generation_logits")
"""Inputs that are refused if they are true: no backend returns logits."""

OUTPUTS = (
    Tensor("text_output", "BYTES", (-1,)),
    Tensor("finish_reason", "BYTES", (-1,), asked_by="return_finish_reason"),
    Tensor("cumulative_logprob", "FP32", (-1,), asked_by="return_cumulative_logprob"),
    Tensor("logprobs", "BYTES", (-1,), asked_by="return_logprobs"),
    Tensor("num_input_tokens", "UINT32", (1,), asked_by="return_num_input_tokens"),
    Tensor("num_output_tokens", "UINT32", (-1,), asked_by="return_num_output_tokens"),
    # TensorRT-LLM's: the log-probabilities of each answer, and of each token of all answers.
    Tensor("cum_log_probs", "FP32", (-1,), asked_by="return_log_probs"),
    Tensor("output_log_probs", "FP32", (-1,), asked_by="return_log_probs"),
)

DATATYPES = {tensor.name: tensor.datatype for tensor in INPUTS + OUTPUTS}

INPUT = {tensor.name: tensor for tensor in INPUTS}
"""By its usual name."""
_OUTPUTS = {tensor.name: tensor for tensor in OUTPUTS}
# `struct` codes; with "<" BOOL is 1 byte, UINT32 and FP32 are 4.
_FORMATS = {"BOOL": "?", "INT32": "i", "UINT32": "I", "INT64": "q", "UINT64": "Q", "FP32": "f", "FP64": "d"}
TYPES = {
    "BYTES": "TYPE_STRING",
    "BOOL": "TYPE_BOOL",
    "INT32": "TYPE_INT32",
    "UINT32": "TYPE_UINT32",
    "INT64": "TYPE_INT64",
    "UINT64": "TYPE_UINT64",
    "FP32": "TYPE_FP32",
    "FP64": "TYPE_FP64",
}
"""A datatype -> its name in a model's configuration."""
_WORDS = {
    "BYTES": "string as string",
    "BOOL": "boolean as boolean",
    "FP32": "number as number",
    "FP64": "number as number",
}
_INTEGERS = "integer as integer"


def inputs(card: ModelCard) -> dict[str, Tensor]:
    """The endpoint's inputs, by the endpoint's names."""
    found = _renamed(INPUT, card.tensors.inputs)
    if not card.tensors.own:
        return found
    own = card.tensors.own
    kept = {
        name: replace(tensor, optional=not own[name].required) if name in own else tensor
        for name, tensor in found.items()
    }
    return kept | {
        name: Tensor(name, each.datatype, each.dims, optional=not each.required, own=True)
        for name, each in own.items()
        if name not in found
    }


def outputs(card: ModelCard) -> dict[str, Tensor]:
    """The endpoint's outputs, by the endpoint's names."""
    return _renamed(_OUTPUTS, card.tensors.outputs)


def _renamed(tensors: dict[str, Tensor], own_names: dict[str, str]) -> dict[str, Tensor]:
    if not own_names:
        return tensors
    # The configuration maps own names to usual ones; here the direction is reversed.
    names = {usual: own for own, usual in own_names.items()}
    return {names.get(usual, usual): tensor for usual, tensor in tensors.items()}


def wrong_type(datatype: str, value: Any) -> str | None:
    """What Triton's JSON parser says of an element that is not of a datatype, such as "string as string"; else None."""
    match datatype:
        case "BYTES":
            fits = isinstance(value, str)
        case "BOOL":
            fits = isinstance(value, bool)
        case "FP32" | "FP64":
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            fits = isinstance(value, int) and not isinstance(value, bool)
    return None if fits else _WORDS.get(datatype, _INTEGERS)


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
