"""A streamed answer as it comes in: reads of the socket to batches of events.

The one thing to know: what breaks an answer is told after all that was said before it, though both came in one read. A
client that was cut off has then seen as much as there was.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from adapters.base import StreamDecoder
from backends.transport import Response
from schemas.errors import BackendTimeout, Fault, GatewayError, Incomplete
from schemas.ir import Delta, Events


class Reading:
    """One answer being read.

    Args:
        response: where it comes from.
        decoder: what its bytes mean.
        idle: seconds that may pass between two events.
    """

    __slots__ = ("_decoder", "_failure", "_idle", "_loop", "_response")

    def __init__(self, response: Response, decoder: StreamDecoder, idle: float) -> None:
        self._response = response
        self._decoder = decoder
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._failure: GatewayError | None = None

    async def first(self, deadline: float) -> Events:
        """The first events, at least one. A failure before anything was said is told at once: others may be asked.

        Raises:
            schemas.errors.GatewayError: there are none.
        """
        events = await self.more(deadline)
        if self._failure is not None and not any(isinstance(event, Delta) for event in events):
            raise self._failure
        return events

    async def more(self, deadline: float | None = None) -> Events:
        """The next events, at least one; unless said otherwise, within `idle` seconds.

        Raises:
            schemas.errors.GatewayError: there are none, though the answer was not finished.
        """
        if self._failure is not None:
            raise self._failure
        until = self._loop.time() + self._idle if deadline is None else deadline
        events: Events = ()
        while not events:
            try:
                data = await self._response.read(until)
            except BackendTimeout as late:
                return self._end(_stalled() if deadline is None else late)
            except Incomplete as cut:
                return self._end(cut)
            if not data:
                return self._end(
                    Incomplete("The backend's stream ended before it was finished.", fault=Fault.TRUNCATED)
                )
            events = self._decoded(data)
        return events

    def _decoded(self, data: bytes) -> Events:
        try:
            return self._decoder.feed(data)
        except GatewayError as error:
            if not self._decoder.before:
                raise
            self._failure = error
            return self._decoder.before

    def _end(self, cut: GatewayError) -> Events:
        """What was still due: a stream that stops after all was said is complete, however it does. Else `cut`."""
        with suppress(Incomplete):
            if events := self._decoder.close():
                return events
        raise cut


def _stalled() -> Incomplete:
    return Incomplete("The backend's stream stalled before it was finished.", fault=Fault.IDLE)
