"""Reading of one request: its key, its place among the running ones, its body, and what that asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from urllib.parse import parse_qsl

from litestar.types import HTTPScope
from msgspec.structs import replace

from adapters.base import Call, Reply
from adapters.optional import has_objects
from gateway.access.headers import decode_headers
from gateway.access.keys import given_key
from gateway.http.accounting import RequestAccount
from gateway.http.client import Client
from gateway.http.observation.observer import RequestObserver
from gateway.http.reading.body import read_body
from gateway.http.reading.via import check_passed, gateways_passed
from gateway.http.timeouts import TIMEOUT_HEADER, seconds_of
from gateway.mounts import Operation
from gateway.service import Service
from gateway.storage.decoded_requests import Name, name_of
from gateway.storage.key_stores import KeyStores
from schemas.catalog import Catalog, Change
from schemas.errors import Overloaded, RequestTimeout
from schemas.ir import Embed, Generate, Request
from schemas.origin import Relay

MODEL_HEADER = "x-gateway-model-name"
"""Names the endpoint for requests that name no model: the header of Kubernetes' Gateway API Inference Extension."""

_LARGE = 1 << 20
"""Bytes of a body from which it is decoded in a thread: the event loop would stand still for milliseconds."""


class RequestReader:
    """Reads one request.

    Args:
        service: the worker's: keys, limits and catalog.
        operation: what was asked.
        parameters: those in the path.
        scope: ASGI's.
        client: has sent the request.
        account: the request's, which gets its key, its owner and its time limit.
    """

    __slots__ = (
        "_account",
        "_client",
        "_destinations",
        "_name",
        "_parameters",
        "_scope",
        "_service",
        "operation",
        "stores",
    )

    def __init__(
        self,
        service: Service,
        operation: Operation,
        parameters: Mapping[str, str],
        scope: HTTPScope,
        client: Client,
        account: RequestAccount,
    ) -> None:
        self._service = service
        self.operation = operation
        self._parameters = parameters
        self._scope = scope
        self._client = client
        self._account = account
        self._destinations: tuple[str, ...] = ()
        self._name: Name | None = None
        self.stores: KeyStores | None = None

    async def read(self, observer: RequestObserver) -> tuple[Call, bytes] | None:
        """Headers, key and body off the wire; None if the client left before it had sent the body.

        Raises:
            schemas.errors.RequestError: the key is missing or wrong, or the body cannot be taken.
            schemas.errors.Overloaded: too many requests are running.
        """
        service, route = self._service, self.operation.route
        # The key comes before the body: nobody without one makes the server buffer megabytes.
        client = self._client
        headers = decode_headers(self._scope["headers"]) if client.headers is None else client.headers
        observer.trace(headers, self._scope, route.path)
        if client.account is not None:
            pass  # it was checked when the request was begun without a task
        elif route.kind == "manage":
            self._account.key = service.keys.check_admin(headers)
        elif service.keys.required and not route.open:
            self._account.key = service.keys.check(headers)
        if "via" in headers:
            check_passed(passed := gateways_passed(self._scope["headers"]))
            observer.pass_on(passed)
        # Before the body, too: under overload a refusal must cost little.
        if route.kind not in ("describe", "object"):
            self._admit(headers)
        body = await read_body(client.receive, headers, service.limits, form=route.form, whole=client.take_body())
        if body is None:
            return None
        # After the body, which may take a minute: the request gets what is deployed now, not what was at its beginning.
        if client.account is None:
            service.refresh()
        if route.stores or route.keeps:
            self.stores = service.stores.of(given_key(headers))
        query = self._scope.get("query_string", b"")
        catalog = self.shown(service.catalog)
        if default := headers.get(MODEL_HEADER) or self.operation.endpoint:
            catalog = replace(catalog, default=default)
        call = Call(
            self._account.request_id,
            catalog,
            self._parameters,
            headers,
            _read_query(query.decode("latin-1")) if query else {},
            self.stores.responses if self.stores is not None and route.stores else None,
            await self._entries(body),
            self.stores is not None and self.stores.keeps,
        )
        return call, body

    async def decode(self, call: Call, body: bytes) -> Request | Change | Reply:
        """What the body asks for.

        Raises:
            schemas.errors.RequestError: it came too late, or the protocol cannot read it.
        """
        allowed = self._account.time_allowed
        if allowed is not None and monotonic() - self._account.began >= allowed:
            raise RequestTimeout("The request did not arrive in the time that it allows.")
        # One that was begun without a task keeps what was decoded then.
        decoded = self._account.request or await self._decoded(call, body)
        if (self._account.owner is not None or self._destinations) and isinstance(decoded, Generate | Embed | Relay):
            decoded = replace(decoded, flow=self._account.owner or "", destinations=self._destinations)
        return decoded

    def keep(self, request: Request) -> None:
        """Keep what was decoded for requests with the same body."""
        if self._name is not None and self._service.decoded is not None:
            self._service.decoded.put(self._name, request)

    def shown(self, catalog: Catalog) -> Catalog:
        """The catalog with the endpoints that the request's key may ask."""
        key = self._account.key
        return catalog if key is None or key.endpoints == ("*",) else catalog.narrowed(key.may_ask)

    async def _decoded(self, call: Call, body: bytes) -> Request | Change | Reply:
        service, decode, route = self._service, self.operation.codec.decode, self.operation.route
        # Catalogs that are made for one request, and records of a key, belong to no other request.
        if service.decoded is not None and call.catalog is service.catalog and call.records is None:
            self._name = name_of(self.operation, call, body)
            if (known := service.decoded.get(self._name, call.catalog)) is not None:
                self._name = None
                return replace(known, id=call.id)
        # Decoding a small body takes less time than handing it to a thread and waiting for the result.
        if len(body) > _LARGE:
            return await asyncio.to_thread(decode, route, body, call)
        return decode(route, body, call)

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
            self._account.owner = owner  # the handler has it leave
        if (given := headers.get(TIMEOUT_HEADER)) is not None:
            self._account.time_allowed = seconds_of(given)
        if (picker := self._service.config.server.endpoint_picker_header) is not None:
            self._destinations = tuple(filter(None, map(str.strip, headers.get(picker, "").split(","))))
        self._account.cache_control = headers.get("cache-control", "")

    async def _entries(self, body: bytes) -> tuple[bytes, ...] | None:
        """The entries of the object that a request needs; None if it needs none, or there is no such object."""
        codec = self.operation.codec
        if self.stores is None or not has_objects(codec):
            return None
        needed = codec.needed(self.operation.route, body)
        return await self.stores.entries(*needed) if needed is not None else None


def _read_query(query: str) -> dict[str, str]:
    """The parameters of a query; of a list (`include[]=a&include[]=b`) the values with commas between them."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query):
        found[name] = f"{found[name]},{value}" if name.endswith("[]") and name in found else value
    return found
