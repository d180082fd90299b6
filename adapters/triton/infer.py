"""KServe v2 infer: tensors in and out, as JSON or as bytes after the JSON (the binary tensor data extension).

A body is JSON, whose length is in the header `Inference-Header-Content-Length`, followed by the bytes of every input
with `parameters.binary_data_size`, in order. Answers have the same form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from adapters.base import Reply
from adapters.body import read as read_body
from adapters.triton import tensors
from adapters.triton.generate.body import check_parameter
from adapters.triton.generate.request import Given, from_tensors
from adapters.triton.tensors import Tensor
from schemas.catalog import ModelCard
from schemas.errors import InvalidRequest
from schemas.ir import Output
from schemas.triton import InferRequest, InferResponse, InputTensor, OutputTensor, RequestedOutput

HEADER = "inference-header-content-length"
_MAX_DIMENSIONS = 8
_SCHEDULING = ("sequence_id", "sequence_start", "sequence_end", "binary_data_output")


def read(body: bytes, headers: Mapping[str, str], card: ModelCard, limit: int) -> Given:
    """Decode a body of at most `limit` bytes.

    Raises:
        schemas.errors.MalformedBody: the JSON is malformed.
        schemas.errors.InvalidRequest: the body is no infer request for this model.
    """
    if len(body) > limit:
        raise InvalidRequest(f"request size of {len(body)} bytes exceeds the maximum allowed input size of {limit}")
    # Without the header the whole body is JSON.
    length = _header_length(headers.get(HEADER), len(body))
    request, unknown = read_body(body[:length], InferRequest)
    return to_given(request, body[length:], card, unknown.paths)


def to_given(request: InferRequest, data: bytes, card: ModelCard, unknown: tuple[str, ...] = ()) -> Given:
    """The tensors and parameters of a request.

    Args:
        request: the request without the elements of its binary inputs.
        data: those elements, in the order of the inputs.
        card: the model's.
        unknown: the members of the request that have no meaning.

    Raises:
        schemas.errors.InvalidRequest: it is no infer request for this model.
    """
    values = _inputs(request.inputs, data, tensors.inputs(card), card.name)
    given = request.parameters or {}
    binary = given.get("binary_data_output") is True
    known = tensors.outputs(card)
    return from_tensors(
        values,
        dict(_parameters(given)),
        card=card,
        id=request.id or "",
        outputs=tuple(_output(output, binary, known, card.name) for output in request.outputs or ()),
        binary=binary,
        unknown=unknown,
    )


def _header_length(given: str | None, size: int) -> int:
    if given is None:
        return size
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", given):
        raise InvalidRequest(f"Unable to parse Inference-Header-Content-Length, got: {given[:32]}")
    # The pattern above bounds what `int` reads.
    if not 0 < int(given) <= size:
        raise InvalidRequest(f"inference header size should be in range (0, {size}), got: {given}")
    return int(given)


def _parameters(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        # Triton puts its own parameters under this prefix (`triton_enable_empty_final_response`).
        if name.startswith("triton_"):
            raise InvalidRequest(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
                param=f"parameters.{name}",
            )
        # The sequence batcher's parameters have no meaning for text models; `binary_data_output` is read above.
        if name not in _SCHEDULING:
            check_parameter(name, value)
            yield name, value


# --- inputs -----------------------------------------------------------------------------------------------------


def _inputs(given: tuple[InputTensor, ...], data: bytes, known: dict[str, Tensor], model: str) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for tensor in given:
        expected = known.get(tensor.name)
        if expected is None:
            raise InvalidRequest(f"unexpected inference input '{tensor.name}' for model '{model}'", param="inputs")
        if tensor.datatype != expected.datatype:
            raise InvalidRequest(
                f"inference input '{tensor.name}' data-type is '{tensor.datatype}', "
                f"but model '{model}' expects '{expected.datatype}'",
                param="inputs",
            )
        if tensor.name in values:
            raise InvalidRequest(f"input '{tensor.name}' already exists in request", param="inputs")
        size = _binary_size(tensor)
        if size is not None and size > len(data):
            raise InvalidRequest(
                f"unexpected size for input '{tensor.name}', "
                f"expecting {size - len(data)} additional bytes for model '{model}'",
                param="inputs",
            )
        # The bytes of binary tensors lie after the JSON in the order of the inputs, without gaps.
        elements = _flat(tensor) if size is None else _unpacked(tensor, data[:size])
        data = data[size or 0 :]
        _check_shape(tensor, expected, elements, model)
        values[tensor.name] = elements
    # Bytes left over: a size or a tensor is wrong.
    if data:
        raise InvalidRequest(f"unexpected additional input data for model '{model}'")
    return values


def _binary_size(tensor: InputTensor) -> int | None:
    parameters = tensor.parameters or {}
    if "shared_memory_region" in parameters:
        raise InvalidRequest(f"shared memory is not supported for input '{tensor.name}'", param="inputs")
    size = parameters.get("binary_data_size")
    # Exactly one of the two.
    if (size is None) == (tensor.data is None):
        fields = " no field is set" if size is None else " set 'data' 'binary_data_size'"
        raise InvalidRequest(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'. But{fields}",
            param="inputs",
        )
    # bool is a subclass of int.
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
        raise InvalidRequest(
            "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer",
            param="inputs",
        )
    return size


def _unpacked(tensor: InputTensor, data: bytes) -> list[Any]:
    try:
        return tensors.unpack(tensor.datatype, data)
    except UnicodeDecodeError:
        raise InvalidRequest(f"input '{tensor.name}' is not valid UTF-8", param="inputs") from None
    except ValueError as error:
        raise InvalidRequest(f"unexpected size for input '{tensor.name}': {error}", param="inputs") from None


def _flat(tensor: InputTensor) -> list[Any]:
    """`data` as a flat list; `shape` makes its nesting redundant."""
    elements = list(_leaves(tensor.data or []))
    for element in elements:
        if wanted := tensors.wrong_type(tensor.datatype, element):
            raise InvalidRequest(f"Unable to parse 'data': attempt to access JSON non-{wanted}", param="inputs")
    return elements


def _leaves(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            # The recursion is bounded: `adapters.body` limits the nesting.
            yield from _leaves(value)
        else:
            yield value


def _check_shape(tensor: InputTensor, expected: Tensor, elements: list[Any], model: str) -> None:
    count = len(elements)
    # Sizes are bounded before they are multiplied: a shape of huge numbers would make a huge product.
    fits = len(tensor.shape) <= _MAX_DIMENSIONS and all(0 <= size <= count for size in tensor.shape)
    if not fits or math.prod(tensor.shape) != count:
        raise InvalidRequest(
            f"Failed to parse 'data' field: shape does not match true shape of input '{tensor.name}'", param="inputs"
        )
    # A parameter may come once for each prompt of a batch, if it is the same for all.
    same = bool(expected.parameter) and all(element == elements[0] for element in elements)
    if expected.dims == (1,) and count != 1 and not (same and count):
        raise InvalidRequest(
            f"unexpected shape for input '{tensor.name}' for model '{model}'. "
            f"Expected [1], got {_listed(tensor.shape)}.",
            param="inputs",
        )


def _listed(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


# --- outputs ----------------------------------------------------------------------------------------------------


def _output(given: RequestedOutput, binary: bool, known: dict[str, Tensor], model: str) -> Output:
    parameters = given.parameters or {}
    if given.name not in known:
        raise InvalidRequest(f"unexpected inference output '{given.name}' for model '{model}'", param="outputs")
    for name in ("classification", "shared_memory_region"):
        if name in parameters:
            raise InvalidRequest(f"{name} is not supported for output '{given.name}'", param="outputs")
    # The output's own wish overrides `binary_data_output` of the request.
    as_bytes = parameters.get("binary_data", binary)
    if not isinstance(as_bytes, bool):
        raise InvalidRequest(
            "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean", param="outputs"
        )
    return Output(known[given.name].name, given.name, as_bytes)


def write(wanted: tuple[Output, ...], values: Mapping[str, list[Any]], *, model: str, version: str, id: str) -> Reply:
    """Encode an answer. `values` are the elements of the outputs, by the usual names of the tensors."""
    described: list[OutputTensor] = []
    data: list[bytes] = []
    for output in wanted:
        elements = values[output.tensor]
        datatype, shape = tensors.DATATYPES[output.tensor], (len(elements),)
        if output.binary:
            data.append(tensors.pack(datatype, elements))
            size = {"binary_data_size": len(data[-1])}
            described.append(OutputTensor(output.name, datatype, shape, parameters=size))
        else:
            described.append(OutputTensor(output.name, datatype, shape, data=elements))
    answer = InferResponse(model_name=model, model_version=version, outputs=tuple(described), id=id or msgspec.UNSET)
    body = msgspec.json.encode(answer)
    # No binary output, or empty ones: the body is JSON alone.
    if not any(data):
        return Reply(body)
    return Reply(
        b"".join([body, *data]),
        media_type="application/octet-stream",
        headers=(("Inference-Header-Content-Length", str(len(body))),),
    )
