"""Answers over gRPC: values of output tensors to `ModelInferResponse`, whole or as a stream.

Strategy: of the responses of a stream only the elements differ. All else is encoded once and put together with them as
bytes: the fields of a message may come in any order, and the encodings of two parts of a message, one after the other,
are the encoding of the whole (protobuf's wire format, "Last One Wins").
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from adapters.formats.length_prefixed import frame
from adapters.triton import describe, tensors
from adapters.triton.dialects import Dialect
from adapters.triton.failures import message
from adapters.triton.generate.encode import ResponseEncoder
from adapters.triton.generate.request import outputs_of
from adapters.triton.grpc.failures import stream_error
from adapters.triton.grpc.messages import MEDIA_TYPE, MESSAGES
from schemas.errors import GatewayError
from schemas.ir import Delta, Event, Events, Generate

FINAL = "triton_final_response"
"""The parameter of each response of a stream that says whether it is the request's last one."""

# Keys of fields that hold bytes: the field's number, times 8, plus 2.
_RAW_OUTPUT = b"\x32"  # ModelInferResponse.raw_output_contents
_INFER_RESPONSE = b"\x12"  # ModelStreamInferResponse.infer_response


class ResponseWriter:
    """Writes the responses to one request.

    Args:
        request: the request that is answered.
        dialect: the protocol's variant.
    """

    def __init__(self, request: Generate, dialect: Dialect) -> None:
        self._model = request.model
        self._version = dialect.answers.model_version or describe.VERSION
        self._id = request.client_request_id or ""
        self._outputs = [
            (output.name, output.tensor, tensors.DATATYPES[output.tensor]) for output in outputs_of(request)
        ]
        self._heads: dict[tuple[bool | None, tuple[int | None, ...]], bytes] = {}

    def whole(self, values: dict[str, Any]) -> bytes:
        """A `ModelInferResponse`."""
        return self._response(values, None)

    def part(self, values: dict[str, Any], *, is_last: bool) -> bytes:
        """A framed `ModelStreamInferResponse`."""
        response = self._response(values, is_last)
        return frame(_INFER_RESPONSE + _varint(len(response)) + response)

    def text(self, text: str, *, is_last: bool) -> bytes:
        """The same as `part` for a single output with one text, in a third of the time."""
        data = text.encode()
        size = len(data)
        head = self._head((1,), is_last)
        raw = _RAW_OUTPUT + _varint(size + 4) + size.to_bytes(4, "little")
        size += len(head) + len(raw)
        length = _varint(size)
        return b"".join((b"\0", (1 + len(length) + size).to_bytes(4, "big"), _INFER_RESPONSE, length, head, raw, data))

    def _response(self, values: dict[str, Any], is_last: bool | None) -> bytes:
        sizes: list[int | None] = []
        parts = [b""]
        for _, tensor, datatype in self._outputs:
            elements = values.get(tensor)
            if elements is None:  # not known yet: a response without this output
                sizes.append(None)
                continue
            if not isinstance(elements, list):
                elements = [elements]
            data = tensors.pack(datatype, elements)
            parts += (_RAW_OUTPUT, _varint(len(data)), data)
            sizes.append(len(elements))
        parts[0] = self._head(tuple(sizes), is_last)
        return b"".join(parts)

    def _head(self, sizes: tuple[int | None, ...], is_last: bool | None) -> bytes:
        """All of a response but the elements of its outputs, of which there are so many."""
        if (known := self._heads.get((is_last, sizes))) is not None:
            return known
        response = MESSAGES["ModelInferResponse"](model_name=self._model, model_version=self._version, id=self._id)
        if is_last is not None:
            response.parameters[FINAL].bool_param = is_last
        for (name, _, datatype), size in zip(self._outputs, sizes, strict=True):
            if size is not None:
                response.outputs.add(name=name, datatype=datatype, shape=[size])
        head: bytes = response.SerializeToString()
        self._heads[is_last, sizes] = head
        return head


class MessageEncoder(ResponseEncoder):
    """The encoder of the answer to one request of `ModelStreamInfer`."""

    media_type = MEDIA_TYPE

    def __init__(self, request: Generate, dialect: Dialect) -> None:
        super().__init__(request, dialect)
        self._writer = ResponseWriter(request, dialect)
        self.abort_after_error = False  # the call may have other requests

    def feed(self, events: Events) -> bytes:
        """One response for what the events add to a choice: a message of gRPC costs as much as ten tokens."""
        return super().feed(_joined(events) if len(events) > 2 else events)

    def response(self, values: dict[str, Any], *, is_last: bool) -> bytes:
        """The values as a framed message."""
        if self._values.plain:
            return self._writer.text(values["text_output"], is_last=is_last)
        return self._writer.part(values, is_last=is_last)

    def fail(self, error: GatewayError) -> bytes:
        """The error as a framed message."""
        return stream_error(message(error), self._request.client_request_id or "")


def _joined(events: Events) -> Events:
    """The events with those parts as one that follow each other in a choice."""
    found: list[Event] = []
    parts: list[Delta] = []
    for event in events:
        if parts and not (isinstance(event, Delta) and event.choice == parts[0].choice):
            found.append(_whole(parts))
            parts = []
        # A refusal is written behind its piece's text, and nothing follows an end.
        if type(event) is Delta and not event.refusal:
            parts.append(event)
        elif isinstance(event, Delta):
            found.append(_whole([*parts, event]))
            parts = []
        else:
            found.append(event)
    return (*found, _whole(parts)) if parts else tuple(found)


def _whole(parts: list[Delta]) -> Delta:
    """The parts as the last of them, with all that this protocol has of the others."""
    if len(parts) == 1:
        return parts[0]
    text = "".join([part.text for part in parts])
    return replace(parts[-1], text=text, tokens=tuple([token for part in parts for token in part.tokens]))


def _varint(value: int) -> bytes:
    """A number in base 128, the lowest digits first; the highest bit of each byte says that another one follows."""
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
