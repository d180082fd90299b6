"""Bodies of the generate extension, by Triton's rules and by MindIE's.

Triton's rules (src/http_server.cc, ConvertGenerateRequest): members are handled in order. A member with the name of a
model input becomes that tensor, any other a request parameter; members of `parameters` are handled like those of the
body. A tensor given twice is an error, so the body is decoded as ordered pairs. MindIE's body is a plain object.
"""

from __future__ import annotations

import json
import re
from typing import Any

from adapters.body import parse
from adapters.triton import tensors
from adapters.triton.dialects import Dialect
from adapters.triton.generate.request import Given, from_tensors
from schemas.catalog import ModelCard
from schemas.errors import InvalidRequest
from schemas.ir import ImagePart

Pairs = tuple[tuple[str, Any], ...]
"""A JSON object; arrays are lists."""

# The standard library's decoder: msgspec has no hook that sees duplicate keys. A tuple of pairs is an object, a list an
# array, so the two stay different even when empty.
_in_pairs = json.JSONDecoder(object_pairs_hook=tuple).decode


def read(body: bytes, card: ModelCard, dialect: Dialect) -> Given:
    """Decode a body.

    Raises:
        schemas.errors.MalformedBody: the body is not JSON.
        schemas.errors.InvalidRequest: the body is no generate request.
    """
    found = parse(body)
    if dialect.requests.rules == "mindie":
        return _read_object(found, dialect)
    # Decoded twice: `parse` checks the limits that all protocols share, but loses duplicate keys.
    pairs = _in_pairs(body.decode())
    if not isinstance(pairs, tuple):
        raise InvalidRequest("attempt to get members for non-object")
    # Reversed: a dict keeps the last value of a key, and here the first counts.
    id = dict(reversed(pairs)).get("id", "")
    if not isinstance(id, str):
        raise InvalidRequest("Unable to parse 'id': attempt to access JSON non-string as string", param="id")
    reader = _MemberReader(card, dialect.limits.max_input_bytes)
    reader.members(pairs)
    return from_tensors(reader.tensors, reader.parameters, card=card, id=id)


class _MemberReader:
    """Collects the tensors and parameters among the members of a body."""

    def __init__(self, card: ModelCard, limit: int) -> None:
        self.tensors: dict[str, list[Any]] = {}
        self.parameters: dict[str, Any] = {}
        self._inputs = tensors.inputs(card)
        self._limit = limit
        self._size = 0

    def members(self, pairs: Pairs, *, nested: bool = False) -> None:
        first = dict(reversed(pairs))  # of a duplicate, the first value counts
        # RapidJSON iterates over all members, duplicates included, but finds the first by name: a tensor given twice is
        # seen twice, and refused the second time.
        for name, _ in pairs:
            value = first[name]
            if name in self._inputs:
                self._tensor(name, value)
            # Within `parameters` both words are ordinary parameters.
            elif nested or name not in ("id", "parameters"):
                self._parameter(name, value)
            elif name == "parameters":
                self._nested(value)

    def _nested(self, value: Any) -> None:
        if not isinstance(value, tuple):
            raise InvalidRequest(
                "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
                param="parameters",
            )
        try:
            self.members(value, nested=True)
        # The prefix is Triton's, for each level of conversion.
        except InvalidRequest as error:
            message = f"Converting keyword: 'parameters': {error.message}"
            raise InvalidRequest(message, param=f"parameters.{error.param}") from None

    def _parameter(self, name: str, value: Any) -> None:
        check_parameter(name, value)
        self.parameters[name] = value

    def _tensor(self, name: str, value: Any) -> None:
        tensor = self._inputs[name]
        values = value if isinstance(value, list) else [value]
        # The size first: it bounds the work of the checks below. A BOOL is one byte.
        self._count(name, _texts_size(name, values) if tensor.datatype == "BYTES" else len(values))
        # Each text of a prompt would be a prompt of its own.
        if len(values) != 1 and (tensor.dims == (1,) or tensor.name == "text_input"):
            raise InvalidRequest(f"The schema can not convert input '{name}' to tensor with proper shape", param=name)
        for each in values:
            # Parameters are checked, and numbers in strings read, where their meaning is known.
            wanted = None if tensor.parameter else tensors.wrong_type(tensor.datatype, each)
            if tensor.parameter:
                check_parameter(name, each)
            if wanted is not None:
                raise InvalidRequest(f"Unable to parse 'data': attempt to access JSON non-{wanted}", param=name)
        # Of a parameter the last value counts, as where it is no input.
        if name in self.tensors and not tensor.parameter:
            raise InvalidRequest(f"input '{name}' already exists in request", param=name)
        self.tensors[name] = values

    def _count(self, name: str, size: int) -> None:
        # The limit holds for all tensors of a request together.
        if self._size + size > self._limit:
            raise InvalidRequest(
                f"request size of {self._size} bytes with input '{name}' of size {size} bytes exceeds the maximum "
                f"allowed input size of {self._limit}",
                param=name,
            )
        self._size += size


def check_parameter(name: str, value: Any) -> None:
    """Check that a request parameter is a string, a boolean, or a number of at most 64 bits.

    Raises:
        schemas.errors.InvalidRequest: it is null or anything else.
    """
    if not isinstance(value, str | int | float) or (isinstance(value, int) and value.bit_length() > 64):
        raise InvalidRequest(
            f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.", param=name
        )


def _texts_size(name: str, values: list[Any]) -> int:
    if not all(isinstance(value, str) for value in values):
        raise InvalidRequest(
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string", param=name
        )
    # The tensor's form: each string after its length in 4 bytes.
    return sum(len(value.encode()) + 4 for value in values)


# --- MindIE -----------------------------------------------------------------------------------------------------

# 4 Mi characters, MindIE's limit for the text of a request.
_MAX_TEXT = 4 << 20
_MEMBERS = ("id", "text_input", "parameters")


def _read_object(found: Any, dialect: Dialect) -> Given:
    """Decode MindIE's body: null means absent, unknown members are ignored, the last of duplicate keys counts."""
    if not isinstance(found, dict):
        raise InvalidRequest(dialect.wording.malformed)
    id = found.get("id")
    if id is not None and not isinstance(id, str):
        raise InvalidRequest("id must be string type.", param="id")
    if id is not None and dialect.limits.id_pattern is not None and not re.fullmatch(dialect.limits.id_pattern, id):
        raise InvalidRequest(dialect.wording.bad_id, param="id")
    given = found.get("parameters")
    if given is not None and not isinstance(given, dict):
        raise InvalidRequest("parameters must be object type.", param="parameters")
    text, images = _prompt(found.get("text_input"))
    unknown = tuple(name for name in found if name not in _MEMBERS and found[name] is not None)
    return Given(texts=(text,), images=images, id=id or "", parameters=given or {}, unknown=unknown)


def _prompt(value: Any) -> tuple[str, tuple[ImagePart, ...]]:
    if value is None:
        raise InvalidRequest("The text_input not found", param="text_input")
    if value == []:
        raise InvalidRequest("Parameter text_input arr is empty", param="text_input")
    if not isinstance(value, str | list):
        raise InvalidRequest("The type of text_input is abnormal.", param="text_input")
    # After the checks of the type: what is left is a text or a list of parts.
    text, images = (value, ()) if isinstance(value, str) else _text_and_images(value)
    if not 0 < len(text) <= _MAX_TEXT:
        raise InvalidRequest(
            f"text_input must be necessary and data type must be string and length in (0, {_MAX_TEXT}], "
            f"but the length of inputs is {len(text)}",
            param="text_input",
        )
    return text, images


def _text_and_images(parts: list[Any]) -> tuple[str, tuple[ImagePart, ...]]:
    """`[{"type": "text", "text": …}, {"type": "image_url", "image_url": …}]`; the URL is a plain string."""
    texts: list[str] = []
    images: list[ImagePart] = []
    for part in parts:
        match part:
            case {"type": "text", "text": str() as text}:
                texts.append(text)
            case {"type": "image_url", "image_url": str() as ref}:
                images.append(_image(ref))
            case _:
                raise InvalidRequest("text_input array must hold text and image_url parts.", param="text_input")
    return "".join(texts), tuple(images)


def _image(ref: str) -> ImagePart:
    if ref.startswith(("http://", "https://")):
        return ImagePart(ref, "url")
    # Bare base64 of a JPEG starts with "/9j/", which is an unlikely path.
    if ref.startswith(("/", "file:")) and not ref.startswith("/9j/"):
        return ImagePart(ref, "path")
    return ImagePart(ref, "data")
