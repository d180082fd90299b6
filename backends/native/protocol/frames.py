"""How messages travel between worker and engine: a 4-byte little-endian length, then one msgpack object.

Bytes in, messages out; no I/O.
"""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

import msgspec

from backends.native.protocol.messages import Message

_LENGTH = struct.Struct("<I")
LONGEST = 256 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M", bound=Message)


class FrameError(Exception):
    """The other side does not speak this language; the connection is of no use any more."""


def encode_frame(message: Message) -> bytes:
    """One message as it is sent."""
    buffer = bytearray(_LENGTH.size)
    _encoder.encode_into(message, buffer, _LENGTH.size)
    _LENGTH.pack_into(buffer, 0, len(buffer) - _LENGTH.size)
    return bytes(buffer)


class FrameReader(Generic[M]):
    """Turns a stream of bytes, cut anywhere, into messages.

    Args:
        kind: what may arrive: `messages.ToEngine` or `messages.FromEngine`.
        longest: the largest payload accepted, in bytes.
    """

    def __init__(self, kind: Any, *, longest: int = LONGEST) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._longest = longest
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages that `data` completes.

        Raises:
            FrameError: a frame is too long or not one of the expected messages.
        """
        self._buffer += data
        messages: list[M] = []
        start = 0
        with memoryview(self._buffer) as view:
            while (end := self._frame_end(view, start)) is not None:
                messages.append(self._decode(view[start + _LENGTH.size : end]))
                start = end
        del self._buffer[:start]
        return messages

    def _frame_end(self, view: memoryview, start: int) -> int | None:
        if len(view) < start + _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(view, start)
        if length > self._longest:
            raise FrameError(f"a frame of {length} bytes is longer than {self._longest}")
        end: int = start + _LENGTH.size + length
        return end if end <= len(view) else None

    def _decode(self, payload: memoryview) -> M:
        try:
            return self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise FrameError(f"not a message: {error}") from error
