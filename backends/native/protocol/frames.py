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
# The length is read before its payload: without a limit a broken peer could make the reader buffer 4 GiB.
MAX_FRAME_BYTES = 256 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M", bound=Message)


class FrameError(Exception):
    """The peer sent bytes that are not a frame of this protocol; the connection must be closed."""


def encode_frame(message: Message) -> bytes:
    """Encode one message."""
    # The payload is encoded behind room for the length, which is known only afterwards: no concatenation.
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
        # Complete frames are decoded in place. What a message keeps (`bytes`, `str`) is copied by msgspec, so the
        # buffer may change afterwards.
        start = 0
        # The view must be released before the `del` below: a bytearray with an exported buffer cannot be resized.
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
                # msgspec leaves a string that is no UTF-8 as Python's own error.
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise FrameError(f"not a message: {error}") from error
        # Once per call, not once per frame: each removal may move the rest of the buffer.
        del self._buffer[:start]
        return messages
