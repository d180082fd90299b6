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
from urllib.parse import parse_qsl

from litestar.types import HTTPScope
from msgspec.structs import replace

from adapters.base import Call, Reply
from adapters.objects import Follow
from adapters.optional import DetachableEncoder, ObjectCodec, has_objects
from backends.observation import OBSERVER
from gateway.access.headers import decode_headers
from gateway.access.keys import given_key
from gateway.http.accounting import RequestAccount
from gateway.http.answering import Responder
from gateway.http.body import read_body
from gateway.http.client import Client, cancel_on_disconnect
from gateway.http.detached import DetachedResponder, begin_run, events_of
from gateway.http.observation.observer import RequestObserver
from gateway.http.record import row_of
from gateway.http.timeouts import TIMEOUT_HEADER, seconds_of
from gateway.mounts import Operation
from gateway.routing.target import Plan
from gateway.service import Service
from gateway.storage.decoded_requests import Name, name_of
from gateway.storage.objects.run_tasks import Run
from gateway.storage.shared.responses import fetching
from schemas.catalog import Catalog, Change
from schemas.errors import (
    GatewayError,
    Overloaded,
    RateLimited,
    RequestTimeout,
    ShuttingDown,
)
from schemas.ir import Embed, Generate, Request
from schemas.origin import Relay

MODEL_HEADER = "x-gateway-model-name"
"""Names the endpoint for requests that name no model: the header of Kubernetes' Gateway API Inference Extension."""

CONSOLE_HEADER = "x-interlingua-console"
"""Marks requests of the console, which are trials: they count in no experiment, and no shadow gets copies."""
_LARGE = 1 << 20
"""Bytes of a body from which it is decoded in a thread: the event loop would stand still for milliseconds."""


class RequestHandler:
    """Handles one request.

    Args:
        service: the worker's: keys, limits, catalog, router and backends.
        operation: what was asked.
        parameters: those in the path.
        scope: ASGI's.
        client: has sent the request.
    """

    __slots__ = (
        "_account",
        "_client",
        "_destinations",
        "_is_detached",
        "_name",
        "_observer",
        "_operation",
        "_parameters",
        "_responder",
        "_scope",
        "_service",
    )

    def __init__(
        self, service: Service, operation: Operation, parameters: Mapping[str, str], scope: HTTPScope, client: Client
    ) -> None:
        self._service = service
        self._operation = operation
        self._parameters = parameters
        self._scope = scope
        self._client = client
        self._destinations: tuple[str, ...] = ()
        self._name: Name | None = None
        self._is_detached = False
        self._account = client.account or RequestAccount(
            service, operation.protocol, operation.route.name, service.new_id()
        )
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
                if self._name is not None and self._service.decoded is not None:
                    self._service.decoded.put(self._name, planned[0])
            else:
                await cancel_on_disconnect(self._client, self._responder.answer(*planned))
        # Not the client's leaving, which `cancel_on_disconnect` swallows: the server's shutdown, for instance, after
        # the drain time.
        except asyncio.CancelledError:
            self._account.end("cancelled")
            raise
        finally:
            if not self._is_detached:
                self._close()

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
        service, account, responder = self._service, self._account, self._responder
        try:
            read = await self._read()
            if read is None:
                return None
            call, body = read
            if self._operation.variants:
                self._choose(self._operation.for_body(body))
            if self._operation.route.kind == "describe":
                account.stage = "describe"
                await fetching(partial(self._describe, call, body))
                return None
            if self._operation.route.kind == "object":
                account.stage = "describe"
                await self._use_objects(call, body)
                return None
            account.stage = "decode"
            request = await fetching(partial(self._decode, call, body))
            # The answer describes what is deployed after the change.
            if isinstance(request, Change):
                account.stage, account.ignored = "manage", request.unknown
                await service.manage(request, by=account.key.name if account.key is not None else "")
                await self._describe(call, body)
                return None
            if isinstance(request, Reply):
                await responder.reply(request)
                return None
            if (account.owner is not None or self._destinations) and isinstance(request, Generate | Embed | Relay):
                request = replace(request, flow=account.owner or "", destinations=self._destinations)
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
        account.plan = plan = router.plan(request, call.headers)
        account.ticket = ticket = account.ticket or await service.limit(account.key, plan, request)
        # A change of what is deployed has replaced the experiments, too. Nothing is awaited from here to the exposure.
        if service.router is not router:
            account.plan = plan = service.router.plan(request, call.headers)
        if ticket is not None:
            account.quotas = ticket.quotas
        if service.exporter is not None:
            account.version = service.catalog.cards[plan.targets[0].endpoint].version
        account.texts = {} if service.keeps_texts else None
        account.decoded = monotonic() - account.began
        if plan.has_experiment and not account.from_console:
            account.exposure = service.experiments.enter(request, plan, call.headers, shadowed=not service.draining)
        return plan

    def _choose(self, operation: Operation) -> None:
        """Go on with the operation that the body is for: its codec writes the answer, and it is counted."""
        self._operation = operation
        self._account.protocol, self._account.route = operation.protocol, operation.route.name
        self._responder.codec = operation.codec

    async def _read(self) -> tuple[Call, bytes] | None:
        """Headers, key and body off the wire; None if the client left before it had sent the body.

        Raises:
            schemas.errors.RequestError: the key is missing or wrong, or the body cannot be taken.
            schemas.errors.Overloaded: too many requests are running.
        """
        service, route = self._service, self._operation.route
        # The key comes before the body: nobody without one makes the server buffer megabytes.
        client = self._client
        headers = decode_headers(self._scope["headers"]) if client.headers is None else client.headers
        self._observer.trace(headers, self._scope, route.path)
        if route.kind == "manage":
            self._account.key = service.keys.check_admin(headers)
        elif service.keys.required and not route.open:
            self._account.key = service.keys.check(headers)
        # Before the body, too: under overload a refusal must cost little.
        if route.kind not in ("describe", "object"):
            self._admit(headers)
        body = await read_body(client.receive, headers, service.limits, form=route.form, whole=client.take_body())
        if body is None:
            return None
        # After the body, which may take a minute: the request gets what is deployed now, not what was at its beginning.
        service.refresh()
        if route.stores or route.keeps:
            self._responder.stores = service.stores.of(given_key(headers))
        stores = self._responder.stores
        query = self._scope.get("query_string", b"")
        catalog = self._shown(service.catalog)
        if default := headers.get(MODEL_HEADER) or self._operation.endpoint:
            catalog = replace(catalog, default=default)
        call = Call(
            self._account.request_id,
            catalog,
            self._parameters,
            headers,
            _read_query(query.decode("latin-1")) if query else {},
            stores.responses if stores is not None and route.stores else None,
            await self._entries(body),
            stores is not None and stores.keeps,
        )
        return call, body

    def _shown(self, catalog: Catalog) -> Catalog:
        """The catalog with the endpoints that the request's key may ask."""
        key = self._account.key
        return catalog if key is None or key.endpoints == ("*",) else catalog.narrowed(key.may_ask)

    def _admit(self, headers: Mapping[str, str]) -> None:
        """Count a request that runs a model or changes endpoints; listings stay available under load.

        Raises:
            schemas.errors.Overloaded: too many requests are running.
            schemas.errors.RateLimited: too many of the same key are.
        """
        # One that goes on with what was begun without a task has its place already.
        if self._client.account is None and self._service.full:
            raise Overloaded("The server is at its limit of concurrent requests.", retry_after=1.0)
        if self._account.owner is None and (shares := self._service.shares) is not None:
            key = self._account.key
            owner = key.digest if key is not None else self._service.keys.owner(headers).hex()
            shares.enter(owner)
            self._account.owner = owner  # `run` has it leave
        if (given := headers.get(TIMEOUT_HEADER)) is not None:
            self._account.time_allowed = seconds_of(given)
        if (picker := self._service.config.server.endpoint_picker_header) is not None:
            self._destinations = tuple(filter(None, map(str.strip, headers.get(picker, "").split(","))))
        self._account.cache_control = headers.get("cache-control", "")

    async def _decode(self, call: Call, body: bytes) -> Request | Change | Reply:
        """What the body asks for.

        Raises:
            schemas.errors.RequestError: it came too late, or the protocol cannot read it.
        """
        allowed = self._account.time_allowed
        if allowed is not None and monotonic() - self._account.began >= allowed:
            raise RequestTimeout("The request did not arrive in the time that it allows.")
        service, decode, route = self._service, self._operation.codec.decode, self._operation.route
        # Catalogs that are made for one request, and records of a key, belong to no other request.
        if service.decoded is not None and call.catalog is service.catalog and call.records is None:
            self._name = name_of(self._operation, call, body)
            if (known := service.decoded.get(self._name, call.catalog)) is not None:
                self._name = None
                return replace(known, id=call.id)
        # Decoding a small body takes less time than handing it to a thread and waiting for the result.
        if len(body) > _LARGE:
            return await asyncio.to_thread(decode, route, body, call)
        return decode(route, body, call)

    async def _entries(self, body: bytes) -> tuple[bytes, ...] | None:
        """The entries of the object that a request needs; None if it needs none, or there is no such object."""
        codec, stores = self._operation.codec, self._responder.stores
        if stores is None or not has_objects(codec):
            return None
        needed = codec.needed(self._operation.route, body)
        return await stores.entries(*needed) if needed is not None else None

    async def _use_objects(self, call: Call, body: bytes) -> None:
        """Send the answer of a route that uses stored objects.

        Raises:
            schemas.errors.RequestError: the request is wrong, or names an object that is not there.
        """
        codec, stores = self._operation.codec, self._responder.stores
        assert isinstance(codec, ObjectCodec)
        assert stores is not None
        answer = await stores.carry_out(codec.steps(self._operation.route, call, body))
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
        counted = self._shown(self._service.counts.joined(self._service.catalog))
        call = replace(call, catalog=replace(counted, default=call.catalog.default))
        await self._responder.reply(self._operation.codec.describe(self._operation.route, call, body))


def _read_query(query: str) -> dict[str, str]:
    """The parameters of a query; of a list (`include[]=a&include[]=b`) the values with commas between them."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query):
        found[name] = f"{found[name]},{value}" if name.endswith("[]") and name in found else value
    return found
