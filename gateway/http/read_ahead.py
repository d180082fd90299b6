"""Other ways of a backend's events to the writer than one batch after another.

Ahead of a writer for whom many small messages cost more than a few large ones; and where they arrive, without waking
the task that waits for them, which takes half of what a chunk costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from adapters.base import StreamEncoder
from gateway.http.accounting import RequestAccount
from gateway.http.client import Client
from schemas.ir import Event, Events

MOST = 16
"""Events that are read ahead: a client that reads slowly still gets its text in small parts."""
PAUSE = 0.005
"""Seconds from one batch to the next, unless there are `MOST` events or the last ones. A token of a model that takes
longer for it is a batch at once; of a faster one, several are."""


class DirectSink:
    """Writes batches of a stream to the client where they arrive.

    Args:
        account: of the request.
        client: gets them, once its answer has begun.

    Attributes:
        encoder: of the stream; to be set before that.
    """

    __slots__ = ("_account", "_client", "_write", "encoder")

    def __init__(self, account: RequestAccount, client: Client) -> None:
        self._account = account
        self._client = client
        self.encoder: StreamEncoder | None = None

    def ready(self) -> bool:
        """Whether the client takes bytes without a wait."""
        self._write = self._client.at_once
        return self._write is not None

    def take(self, events: Events) -> None:
        """Write a batch. The sink is ready."""
        assert self.encoder is not None
        assert self._write is not None
        data = self.encoder.feed(events)
        account = self._account
        if account.first_token is None or account.texts is not None:
            account.note_batch(events)
        else:
            account.note_next_token(events)  # texts have no finish reason
        if data:
            self._write(data)


async def read_ahead(events: AsyncGenerator[Events, None], pause: float = PAUSE) -> AsyncGenerator[Events, None]:
    """The events of a backend; those that come while a batch is being written, or within the pause, are the next batch.

    Raises:
        schemas.errors.GatewayError: the backend's, after the events before it.
    """
    reading = _Reading(events, pause)
    try:
        while batch := await reading.next():
            yield batch
        reading.task.result()
    finally:
        reading.task.cancel()
        await asyncio.wait((reading.task,))
        if not reading.task.cancelled():
            reading.task.exception()  # raised above, or of no interest to a reader that leaves


class _Reading:
    """The task that reads, and what it has read."""

    def __init__(self, events: AsyncGenerator[Events, None], pause: float) -> None:
        self._events = events
        self._pause = pause
        self._gathered: list[Event] = []
        self._loop = asyncio.get_running_loop()
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due, self._room = asyncio.Event(), asyncio.Event()
        self.task = self._loop.create_task(self._read())

    async def next(self) -> Events:
        """The next batch; empty at the end."""
        self._set_due()
        await self._due.wait()
        self._due.clear()
        # A loop's timer may come a little early, and events behind it have set another one for the same batch.
        self._stop_timer()
        assert self._gathered or self.task.done()
        batch = tuple(self._gathered)
        self._gathered.clear()
        self._room.set()
        self._next_at = self._loop.time() + self._pause
        return batch

    async def _read(self) -> None:
        try:
            async for batch in self._events:
                self._gathered.extend(batch)
                self._set_due()
                if len(self._gathered) >= MOST:
                    self._room.clear()
                    await self._room.wait()
        finally:
            # Here and not by the reader: what a generator has entered, it leaves in the same task.
            await self._events.aclose()
            self._end_pause()

    def _set_due(self) -> None:
        """Let the next batch go, now or when its time has come."""
        gathered = len(self._gathered)
        if self._timer is not None and gathered < MOST:
            return
        if self.task.done() or (gathered and (gathered >= MOST or self._loop.time() >= self._next_at)):
            self._end_pause()
        elif gathered:
            self._timer = self._loop.call_at(self._next_at, self._end_pause)

    def _end_pause(self) -> None:
        self._stop_timer()
        self._due.set()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
