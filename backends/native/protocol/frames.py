"""Framing of messages between worker and engine: a 4-byte little-endian length, then one msgpack object.

Bytes in, messages out; no I/O.
"""

from __future__ import annotations

import struct
from types import UnionType
from typing import Generic, TypeVar

import msgspec

from backends.native.protocol.messages import Message

_LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 256 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M", bound=Message)


class FrameError(Exception):
    """The peer sent bytes that are not a frame of this protocol; the connection must be closed."""


def encode_frame(message: Message) -> bytes:
    """Encode one message."""
    buffer = bytearray(_LENGTH.size)
    _encoder.encode_into(message, buffer, _LENGTH.size)
    _LENGTH.pack_into(buffer, 0, len(buffer) - _LENGTH.size)
    return bytes(buffer)


class FrameReader(Generic[M]):
    """Decodes a stream of bytes, split anywhere, into messages.

    Args:
        kind: the expected messages: `messages.ToEngine` or `messages.FromEngine`.
        max_bytes: the largest payload accepted.
    """

    def __init__(self, kind: UnionType | type[M], *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """Decode the messages that `data` completes.

        Raises:
            FrameError: a frame is too long or not one of the expected messages.
        """
        self._buffer += data
        messages: list[M] = []
        start = 0
        with memoryview(self._buffer) as view:
            while len(view) >= start + _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, start)
                if length > self._max_bytes:
                    raise FrameError(f"a frame of {length} bytes is longer than {self._max_bytes}")
                payload = start + _LENGTH.size
                if len(view) < payload + length:
                    break
                start = payload + length
                try:
                    messages.append(self._decoder.decode(view[payload:start]))
                except msgspec.DecodeError as error:
                    raise FrameError(f"not a message: {error}") from error
        del self._buffer[:start]
        return messages
