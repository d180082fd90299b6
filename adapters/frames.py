"""What the decoders of all streams have in common: frames, which are server-sent events, to events of ours.

A frame is read whole or not at all, and none is lost because a later one is bad: what they said is kept in `before`.
"""

from __future__ import annotations

from adapters.sse import EventReader
from schemas.errors import GatewayError
from schemas.ir import Event, Events


class FrameReader:
    """One stream being read. Subclasses read frames.

    Attributes:
        before: once `feed` has raised, the events of the frames before the bad one, from the same bytes.
    """

    before: Events = ()

    def __init__(self) -> None:
        self._frames = EventReader()

    def feed(self, data: bytes) -> Events:
        """The events completed by these bytes.

        Raises:
            schemas.errors.GatewayError: the remote reported an error, or what it sent makes no sense.
        """
        out: list[Event] = []
        good = 0
        try:
            for frame in self._frames.feed(data):
                self._frame(frame.data, out)
                good = len(out)
        except GatewayError:
            self.before = tuple(out[:good])
            raise
        return tuple(out)

    def _frame(self, data: bytes, out: list[Event]) -> None:
        """Append what a frame says."""
        raise NotImplementedError
