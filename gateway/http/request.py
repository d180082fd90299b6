"""One request from its first byte to its last: reading, routing, answering and accounting, in one task.

Strategy: the task in which ASGI calls us does everything. `cancel_on_disconnect` cancels it when the client leaves,
whatever it waits for, and the `finally` of `Responder` closes the backend's generator, which frees the work behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic

from litestar.types import HTTPScope
from msgspec.structs import replace

from adapters.base import Call, Reply
from adapters.objects import Follow
from adapters.optional import DetachableEncoder, ObjectCodec
from backends.observation import OBSERVER
from gateway.http.accounting import RequestAccount
from gateway.http.answering import Responder
from gateway.http.client import Client, cancel_on_disconnect
from gateway.http.detached import DetachedResponder, begin_run, events_of
from gateway.http.observation.observer import RequestObserver
from gateway.http.reading.request_reader import RequestReader
from gateway.http.record import row_of
from gateway.mounts import Operation
from gateway.routing.target import Plan
from gateway.service import Service
from gateway.storage.objects.run_tasks import Run
from gateway.storage.shared.responses import fetching
from schemas.catalog import Change
from schemas.errors import GatewayError, RateLimited, ShuttingDown
from schemas.ir import Generate, Request

CONSOLE_HEADER = "x-interlingua-console"
"""Marks requests of the console, which are trials: they count in no experiment, and no shadow gets copies."""


class RequestHandler:
    """Handles one request.

    Args:
        service: the worker's: keys, limits, catalog, router and backends.
        operation: what was asked.
        parameters: those in the path.
        scope: ASGI's.
        client: has sent the request.
    """

    __slots__ = ("_account", "_client", "_is_detached", "_observer", "_reader", "_responder", "_service")

    def __init__(
        self, service: Service, operation: Operation, parameters: Mapping[str, str], scope: HTTPScope, client: Client
    ) -> None:
        self._service = service
        self._client = client
        self._is_detached = False
        self._account = client.account or RequestAccount(
            service, operation.protocol, operation.route.name, service.new_id()
        )
        self._reader = RequestReader(service, operation, parameters, scope, client, self._account)
        self._responder = Responder(operation.codec, self._account, client, head=scope["method"] == "HEAD")

    @property
    def id(self) -> str:
        """The request's id."""
        return self._account.request_id

    @property
    def answer_begun(self) -> bool:
        """Whether the head of an answer was sent."""
        return self._responder.begun

    async def run(self) -> None:
        """Answer the request. Raises nothing but a cancellation that was not caused by the client's leaving."""
        self._service.metrics.running.add(1.0)  # `RequestAccount.close` takes it back
        self._observer = RequestObserver(self._account)
        OBSERVER.set(self._observer)
        try:
            planned = await self._plan()
            if planned is None:
                return
            request, plan = planned
            if isinstance(request, Generate) and request.detached:
                await self._detach(request, plan)
                return
            # A cached answer is sent at once: a watch over the client would cost more than it.
            if await self._responder.replay(*planned):
                self._reader.keep(planned[0])
            else:
                await cancel_on_disconnect(self._client, self._responder.answer(*planned))
        # Not the client's leaving, which `cancel_on_disconnect` swallows: the server's shutdown, for instance, after
        # the drain time.
        except asyncio.CancelledError:
            if self._service.draining and not self._responder.begun:
                await self._turn_away()  # the connection still works
            self._account.end("cancelled")
            raise
        finally:
            if not self._is_detached:
                self._close()

    async def _turn_away(self) -> None:
        """Tell a client whose answer has not begun that the server shuts down. It counts as cancelled all the same."""
        request, error = self._account.request, ShuttingDown("The server is shutting down.")
        self._account.message = error.message
        reply = self._responder.codec.error(error, request if isinstance(request, Generate) else None)
        await self._responder.reply(reply, "cancelled")

    def _close(self) -> None:
        """Count the request. Nothing more happens to it."""
        self._account.close()
        self._observer.close()
        if self._account.owner is not None and self._service.shares is not None:
            self._service.shares.leave(self._account.owner)
        if (exporter := self._service.exporter) is not None:
            row = row_of(self._account, with_text=exporter.with_text)
            if row is not None:
                exporter.put(row)

    async def _detach(self, request: Generate, plan: Plan) -> None:
        """Have a task of its own make the answer, and send the client its state, or the events while they come."""
        service, responder, stores = self._service, self._responder, self._responder.stores
        codec, asked = responder.codec, replace(request, stream=True)
        encoder = codec.encoder(asked)
        assert isinstance(encoder, DetachableEncoder)
        assert isinstance(codec, ObjectCodec)
        assert stores is not None
        try:
            opening = encoder.open()
            run = await begin_run(opening, stores, streams=request.stream)
        except Exception as error:  # the store fails, or there is none
            await responder.refuse(error)
            return
        self._is_detached = True
        detached = DetachedResponder(codec, self._account, encoder, run, stores)
        service.running += 1  # for as long as it is made, whether or not the client stays
        service.runs.start(run, self._make_detached(detached, run, asked, plan))
        if not request.stream:
            await responder.acknowledge(opening.reply)
            return
        follow = Follow(run.id, 0, encoder.media_type, encoder.headers)
        events = events_of(follow, stores, service.runs, codec)
        with suppress(GatewayError):  # too late for a status: the server cuts the connection
            await cancel_on_disconnect(self._client, responder.pass_on(follow, events))

    async def _make_detached(self, responder: DetachedResponder, run: Run, request: Generate, plan: Plan) -> None:
        try:
            await responder.answer(request, plan)
        except asyncio.CancelledError:
            self._account.end("cancelled")
            # At the server's end; what a client has cancelled is not this worker's any more.
            if self._service.draining and not run.claimed:
                await responder.refuse(ShuttingDown("The server is shutting down."))
            raise
        finally:
            self._service.running -= 1
            self._close()

    async def _plan(self) -> tuple[Request, Plan] | None:
        """What to answer and where; None if the request has its answer, or its client has left."""
        service, account, reader, responder = self._service, self._account, self._reader, self._responder
        try:
            read = await reader.read(self._observer)
            if read is None:
                return None
            call, body = read
            responder.stores = reader.stores
            if reader.operation.variants:
                self._choose(reader.operation.for_body(body))
            if reader.operation.route.kind == "describe":
                account.stage = "describe"
                await fetching(partial(self._describe, call, body))
                return None
            if reader.operation.route.kind == "object":
                account.stage = "describe"
                await self._use_objects(call, body)
                return None
            account.stage = "decode"
            request = await fetching(partial(reader.decode, call, body))
            # The answer describes what is deployed after the change.
            if isinstance(request, Change):
                account.stage, account.ignored = "manage", request.unknown
                await service.manage(request, by=account.key.name if account.key is not None else "")
                await self._describe(call, body)
                return None
            if isinstance(request, Reply):
                await responder.reply(request)
                return None
            return request, await self._route(request, call)
        except Exception as error:  # whatever it is, the client gets it in its protocol
            if isinstance(error, RateLimited):
                account.quotas = error.quotas
                account.count_limited()
            await responder.refuse(error)
            return None

    async def _route(self, request: Request, call: Call) -> Plan:
        """Pick the targets of a request, and count it for its limits and its experiment.

        Raises:
            schemas.errors.RequestError: nothing answers it, or a limit is reached.
        """
        service, account = self._service, self._account
        account.stage, account.request = "route", request
        router = service.router
        account.from_console = CONSOLE_HEADER in call.headers
        begun = account.plan  # without a task: the request keeps it, and has passed its limits
        account.plan = plan = begun or router.plan(request, call.headers)
        if begun is None:
            account.ticket = await service.limit(account.key, plan, request)
            # A change of what is deployed has replaced the experiments, too. Nothing is awaited from here to the
            # exposure.
            if service.router is not router:
                account.plan = plan = service.router.plan(request, call.headers)
        ticket = account.ticket
        if ticket is not None:
            account.quotas = ticket.quotas
        if service.exporter is not None:
            account.version = service.catalog.cards[plan.targets[0].endpoint].version
        account.texts = {} if service.keeps_texts else None
        account.decoded = monotonic() - account.began
        if account.exposure is None and plan.has_experiment and not account.from_console:
            account.exposure = service.experiments.enter(request, plan, call.headers, shadowed=not service.draining)
        return plan

    def _choose(self, operation: Operation) -> None:
        """Go on with the operation that the body is for: its codec writes the answer, and it is counted."""
        self._reader.operation = operation
        self._account.protocol, self._account.route = operation.protocol, operation.route.name
        self._responder.codec = operation.codec

    async def _use_objects(self, call: Call, body: bytes) -> None:
        """Send the answer of a route that uses stored objects.

        Raises:
            schemas.errors.RequestError: the request is wrong, or names an object that is not there.
        """
        operation, stores = self._reader.operation, self._reader.stores
        codec = operation.codec
        assert isinstance(codec, ObjectCodec)
        assert stores is not None
        answer = await stores.carry_out(codec.steps(operation.route, call, body))
        if isinstance(answer, Reply):
            await self._responder.reply(answer)
            return
        self._account.stage = "stream"
        events = events_of(answer, stores, self._service.runs, codec)
        await cancel_on_disconnect(self._client, self._pass_on(answer, events))

    async def _pass_on(self, follow: Follow, events: AsyncIterator[bytes]) -> None:
        try:
            await self._responder.pass_on(follow, events)
        except GatewayError as error:  # too late for a status: the server cuts the connection
            self._account.message = error.message
            self._account.end(error.kind)
        else:
            self._account.end("ok")

    async def _describe(self, call: Call, body: bytes) -> None:
        """Send the answer of a route that runs nothing, from the catalog as it is now.

        Raises:
            schemas.errors.RequestError: what it asks about is not there.
        """
        # Counts change with every request, so they are joined to the cached catalog only where they are shown.
        # It is read anew, since a change may have been made meanwhile.
        counted = self._reader.shown(self._service.counts.joined(self._service.catalog))
        call = replace(call, catalog=replace(counted, default=call.catalog.default))
        operation = self._reader.operation
        await self._responder.reply(operation.codec.describe(operation.route, call, body))
