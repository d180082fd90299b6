"""`ModelInferRequest` to the tensors and parameters of a request, in the form that `infer` has over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adapters.body import MAX_ITEMS
from adapters.triton import infer
from adapters.triton.generate.request import Given
from adapters.triton.grpc.messages import parse
from schemas.catalog import ModelCard
from schemas.errors import InvalidRequest, MalformedBody
from schemas.triton import InferRequest, InputTensor, RequestedOutput

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""A datatype -> the field with its elements."""
_EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
"""Asks for a last response even where it would be empty. Here the last response of a request always has outputs."""
_SMALL = 1 << 16
"""Bytes that are parsed without a look: a parsed message takes at most about a hundred times as many."""
_MOST_FIELDS = 1 << 17
"""Packed numbers are one field. To count the fields takes the event loop a microsecond for each."""


def read(body: bytes) -> Any:
    """The request as a message.

    Raises:
        schemas.errors.MalformedBody: the body is no such message, or has too many parts.
    """
    # A field takes two bytes, and as an object a hundred: the number of fields is bounded before they are parsed.
    if len(body) > _SMALL:
        parts = 0
        for fields, count in enumerate(_steps(memoryview(body), _REQUEST)):
            parts += count
            if fields == _MOST_FIELDS or parts > MAX_ITEMS:
                raise MalformedBody(f"the request has more than {_MOST_FIELDS} fields, or {MAX_ITEMS} parts in all")
    return parse("ModelInferRequest", body)


def to_given(message: Any, body: bytes, card: ModelCard, limit: int) -> Given:
    """The tensors and parameters of a request of at most `limit` bytes.

    Raises:
        schemas.errors.InvalidRequest: it is no infer request for this model.
    """
    if len(body) > limit:
        raise InvalidRequest(f"request size of {len(body)} bytes exceeds the maximum allowed input size of {limit}")
    raw = list(message.raw_input_contents)
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest(
            f"expected 0 or {len(message.inputs)} raw input contents for the inputs of model '{card.name}', "
            f"got {len(raw)}",
            param="raw_input_contents",
        )
    elements = iter(raw) if raw else None
    parameters = _parameters(message.parameters)
    parameters.pop(_EMPTY_FINAL_RESPONSE, None)
    request = InferRequest(
        inputs=tuple(_input(tensor, next(elements) if elements else None) for tensor in message.inputs),
        id=message.id,
        outputs=tuple(RequestedOutput(output.name, _parameters(output.parameters)) for output in message.outputs),
        parameters=parameters,
    )
    return infer.to_given(request, b"".join(raw), card)


def _input(tensor: Any, raw: bytes | None) -> InputTensor:
    parameters = _parameters(tensor.parameters)
    if raw is not None:
        if tensor.HasField("contents"):
            raise InvalidRequest(
                f"contents field must not be specified when using raw_input_contents for '{tensor.name}'",
                param="inputs",
            )
        return InputTensor(
            tensor.name, tensor.datatype, tuple(tensor.shape), parameters | {"binary_data_size": len(raw)}
        )
    field = _CONTENTS.get(tensor.datatype)
    values = list(getattr(tensor.contents, field)) if field is not None else []
    if field == "bytes_contents":
        values = [_text(value, tensor.name) for value in values]
    return InputTensor(tensor.name, tensor.datatype, tuple(tensor.shape), parameters, values)


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"input '{name}' is not valid UTF-8", param="inputs") from None


def _parameters(given: Any) -> dict[str, Any]:
    """Parameters as values. One without a value, which the protocol allows, is left out."""
    return {
        name: getattr(parameter, choice)
        for name, parameter in given.items()
        if (choice := parameter.WhichOneof("parameter_choice")) is not None
    }


# --- the number of parts ----------------------------------------------------------------------------------------------

_Messages = dict[int, Any]
"""The fields of a message that are messages themselves, by number; None: a field of packed numbers."""
_PARAMETERS: _Messages = {2: {}}
_INPUT: _Messages = {4: _PARAMETERS, 5: dict.fromkeys(range(1, 8))}
_REQUEST: _Messages = {4: _PARAMETERS, 5: _INPUT, 6: {2: _PARAMETERS}}


def _steps(data: memoryview, messages: _Messages) -> Iterator[int]:
    """How many objects each field of a message becomes, in turn (protobuf's wire format, Encoding).

    Raises:
        schemas.errors.MalformedBody: the bytes are no message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        yield 1
        size = 0
        match key & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                size = 8
            case 5:
                size = 4
            case 2:
                size, at = _varint(data, at)
            case kind:
                raise MalformedBody(f"a field has the unknown wire type {kind}")
        inside = messages.get(key >> 3, ()) if key & 7 == 2 else ()
        if inside is None:
            yield size
        elif inside:
            yield from _steps(data[at : at + size], inside)
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number in base 128, and where it ends."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise MalformedBody("a number is cut off")
