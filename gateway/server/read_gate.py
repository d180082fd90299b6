"""Flow control of a client's connection."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl


class ReadGate(FlowControl):
    """Flow control whose reading stays paused while it is held: uvicorn resumes it whenever a request is read.

    Attributes:
        held: whether it is.
        gathers: as of `gateway.http.client.Flow`.
    """

    gathers = False

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.held = False
        self._paused = False  # by uvicorn

    def hold(self, held: bool) -> None:
        """Pause reading until it is held no more, or let it go on if uvicorn wants it."""
        self.held = held
        if held:
            super().pause_reading()
        elif not self._paused:
            super().resume_reading()

    def pause_reading(self) -> None:
        """Pause."""
        self._paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """Resume unless held."""
        self._paused = False
        if not self.held:
            super().resume_reading()
