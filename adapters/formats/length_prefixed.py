"""Messages of gRPC as they are on the wire: a flag, a length and the message (grpc/grpc:doc/PROTOCOL-HTTP2.md).

The flag says that a message is compressed, which none is here: gRPC's libraries have done that before.
"""

from __future__ import annotations

from adapters.formats.sse import Event

_PREFIX = 5
"""Bytes in front of a message."""


def frame(message: bytes) -> bytes:
    """A message with its prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class MessageReader:
    """Incremental reader of one stream of messages. Their size is bounded by the library that has received them."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = b""

    def feed(self, data: bytes) -> list[Event]:
        """The messages completed by these bytes."""
        data, found, at = self.pending + data if self.pending else data, [], 0
        while len(data) - at >= _PREFIX:
            start = at + _PREFIX
            end = start + int.from_bytes(data[at + 1 : start], "big")
            if end > len(data):
                break
            found.append(Event(data[start:end]))
            at = end
        self.pending = data[at:]
        return found
