"""Answers in the background: made whether or not the client stays, and written into the store, not to a connection.

Strategy: the task of such an answer is the request's own, with its account, its limits and its place among the running
requests; only what it writes goes elsewhere. Clients read the events from the store, so that any worker can stream
them, from any event on, as often as a client asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from litestar.types import HTTPReceiveMessage, Message

from adapters.base import Record, ServerCodec, StreamEncoder
from adapters.objects import RUN, Follow
from adapters.optional import DetachableEncoder, ObjectCodec, Opening
from gateway.errors import to_client_error
from gateway.http.accounting import RequestAccount
from gateway.http.answering import Responder
from gateway.http.client import AsgiClient
from gateway.storage.key_stores import KeyStores
from gateway.storage.objects.run_tasks import Run, RunTasks
from gateway.storage.objects.runs import EVENT_END
from gateway.storage.objects.store import TooLarge
from schemas.errors import BackendUnavailable, BodyTooLarge, GatewayError, Incomplete

_BETWEEN_READS = 0.1
"""Seconds between two looks for events that another worker writes."""
_TOO_LARGE = "This request is larger than what the server stores of one."


class DetachedResponder(Responder):
    """Writes an answer in the background: its state to the store of responses, its events beside it.

    A write is refused once somebody else has ended the answer: then its task is cancelled.

    Args:
        codec: the protocol's.
        account: the request's.
        encoder: opened already.
        run: the answer.
        stores: of the request's key.
    """

    __slots__ = ("_encoder", "_run")

    def __init__(
        self, codec: ServerCodec, account: RequestAccount, encoder: DetachableEncoder, run: Run, stores: KeyStores
    ) -> None:
        super().__init__(codec, account, AsgiClient(_nothing, _nowhere), head=False)
        self.stores = stores
        self._encoder = encoder
        self._run = run

    async def refuse(self, error: Exception) -> None:
        """End the answer with an error that came before its first event."""
        failure = to_client_error(error, self._account.request_id)
        self._account.message = failure.message
        self._account.end(failure.kind)
        await self._write_failure(self._encoder, failure)

    def _new_encoder(self, *_: object) -> DetachableEncoder:
        return self._encoder

    async def _start(self, status: int, *_: object) -> None:
        self._account.status = status
        if not await self._run.start():
            raise asyncio.CancelledError

    async def _write(self, data: bytes) -> None:
        if data and not await self._run.write(data):
            raise asyncio.CancelledError

    async def _write_failure(self, encoder: StreamEncoder, failure: GatewayError) -> None:
        data = encoder.fail(failure)
        if self._encoder.record is not None:
            await self._keep(self._encoder.record)
        await self._write(data)

    async def _keep(self, record: Record) -> None:
        # Claimed first: what a client has cancelled stays cancelled.
        if not await self._run.claim():
            raise asyncio.CancelledError
        await super()._keep(record)


async def _nowhere(_: Message) -> None:
    """Send nothing: the client has its answer already."""


async def _nothing() -> HTTPReceiveMessage:
    """Its request was read."""
    return {"type": "http.disconnect"}


async def begin_run(opening: Opening, stores: KeyStores, *, streams: bool) -> Run:
    """Store that an answer in the background is to be made, by this worker.

    Args:
        opening: what it begins with.
        stores: of the request's key.
        streams: whether its events are kept.

    Raises:
        schemas.errors.RequestError: it is too large to be stored, or nothing is.
        schemas.errors.BackendUnavailable: it cannot be stored now.
    """
    id, data = opening.record.id, opening.record.data
    if data is not None and stores.responses is not None and not stores.responses.fits(data):
        raise BodyTooLarge(_TOO_LARGE)
    try:
        await stores.runs.begin(id, opening.events if streams else None)
    except TooLarge:
        raise BodyTooLarge(_TOO_LARGE) from None
    if not await stores.keep(opening.record):
        await stores.objects.delete(RUN, id)
        raise BackendUnavailable("The response cannot be stored now.", retry_after=1.0)
    return Run(id, stores.runs, opening.number if streams else None)


async def events_of(follow: Follow, stores: KeyStores, tasks: RunTasks, codec: ObjectCodec) -> AsyncIterator[bytes]:
    """The events of an answer in the background, from its store: those that are there, and then those that come.

    Raises:
        schemas.errors.Incomplete: the answer was deleted meanwhile, or its events are not all there.
    """
    after, number = "", 0
    while True:
        # In this order: what an ended answer has written is all there when its entries are read.
        state = await stores.runs.find(follow.id)
        page = await stores.runs.events(follow.id, after)
        if state is None or page is None:
            raise Incomplete("The response was deleted.")
        for entry in page.entries:
            events = entry.data.split(EVENT_END)[:-1]
            behind = events[max(0, follow.begin - number) :]
            after, number = entry.id, number + len(events)
            if behind:
                yield EVENT_END.join((*behind, b""))
        if page.more:
            continue
        if state.state == "cut":
            raise Incomplete("The response has more events than are kept.")
        if state.state == "ended":
            return
        if state.state == "lost":
            await stores.carry_out(codec.end_lost(follow.id))
        elif not page.entries:
            await tasks.wait(follow.id, _BETWEEN_READS)
