"""The common part of all stream decoders: frames to events of the IR.

Frames are server-sent events, lines of JSON or messages of gRPC.

A frame is decoded as a whole or not at all. A faulty frame loses none of those before it: their events are in `before`.
"""

from __future__ import annotations

from typing import TypeAlias

from adapters.formats.length_prefixed import MessageReader
from adapters.formats.ndjson import LineReader
from adapters.formats.sse import EventReader
from schemas.errors import GatewayError
from schemas.ir import Event, Events

Frames: TypeAlias = EventReader | LineReader | MessageReader


class FrameReader:
    """The decoder of one stream. Subclasses override `_frame`.

    Args:
        frames: cuts the bytes into frames; server-sent events if it is None.

    Attributes:
        before: after `feed` has raised, the events of the frames before the faulty one, from the same bytes.
    """

    before: Events = ()

    def __init__(self, frames: Frames | None = None) -> None:
        self._frames: Frames = EventReader() if frames is None else frames

    def feed(self, data: bytes) -> Events:
        """The events completed by these bytes.

        Raises:
            schemas.errors.GatewayError: the remote reported an error or violated the protocol.
        """
        out: list[Event] = []
        # `out` may hold events of the faulty frame when `_frame` raises; `good` is where the last whole frame ended.
        good = 0
        try:
            for frame in self._frames.feed(data):
                self._frame(frame.data, out)
                good = len(out)
        # The events before the fault are not lost: the caller sends them first and raises this error on its next read.
        # Any other exception is a bug of the decoder, and nothing of the batch is trusted.
        except GatewayError:
            self.before = tuple(out[:good])
            raise
        return tuple(out)

    def _frame(self, data: bytes, out: list[Event]) -> None:
        """Append the events of one frame to `out`."""
        raise NotImplementedError
