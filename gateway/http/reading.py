"""Reading one request: headers, key and body off the wire, then the body as what it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from urllib.parse import parse_qsl

from litestar.types import HTTPScope, Receive
from msgspec.structs import replace

from adapters.base import Call, Reply, Route, ServerCodec
from gateway.http.body import read_body
from gateway.service import Service
from gateway.storage.response_store import KeyResponses
from schemas.catalog import Change
from schemas.errors import Overloaded
from schemas.ir import Request

_LARGE = 1 << 20
"""Bytes of a body from which it is decoded in a thread: the event loop would stand still for milliseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """A route as mounted: its protocol, and the codec that reads and writes it."""

    protocol: str
    route: Route
    codec: ServerCodec


class RequestReader:
    """Reads one request.

    Args:
        service: has the keys, the limits and the catalog.
        operation: what was asked.
        parameters: those in the path.
        scope: ASGI's.
        request_id: the request's.
    """

    __slots__ = ("_body", "_call", "_operation", "_parameters", "_request_id", "_scope", "_service", "responses")

    def __init__(
        self, service: Service, operation: Operation, parameters: Mapping[str, str], scope: HTTPScope, request_id: str
    ) -> None:
        self._service = service
        self._operation = operation
        self._parameters = parameters
        self._scope = scope
        self._request_id = request_id
        self.responses: KeyResponses | None = None

    async def read(self, receive: Receive) -> Call | None:
        """Everything but the body's meaning; None if the client left before it had sent the body.

        Raises:
            schemas.errors.RequestError: the key is missing or wrong, or the body cannot be taken.
        """
        service, route = self._service, self._operation.route
        headers = decode_headers(self._scope["headers"])
        if route.kind == "manage":
            service.keys.check_admin(headers)
        elif service.keys.required and not route.open:
            service.keys.check(headers)
        body = await read_body(receive, headers, service.limits)
        if body is None:
            return None
        service.refresh()
        query = self._scope.get("query_string", b"")
        if route.stores and service.responses is not None:
            self.responses = service.responses.of(headers)
        self._body = body
        self._call = Call(
            self._request_id,
            service.catalog,
            self._parameters,
            headers,
            dict(parse_qsl(query.decode("latin-1"))) if query else {},
            self.responses,
        )
        return self._call

    async def decode(self) -> Request | Change:
        """What the body asks for.

        Raises:
            schemas.errors.Overloaded: too many requests are running.
            schemas.errors.RequestError: the protocol cannot read it.
        """
        if self._service.full:
            raise Overloaded("The server is at its limit of concurrent requests.", retry_after=1.0)
        decode, route = self._operation.codec.decode, self._operation.route
        if len(self._body) > _LARGE:
            return await asyncio.to_thread(decode, route, self._body, self._call)
        return decode(route, self._body, self._call)

    def describe(self) -> Reply:
        """The answer of a route that runs nothing, from the catalog as it is now.

        Raises:
            schemas.errors.RequestError: what it asks about is not there.
        """
        call = replace(self._call, catalog=self._service.counted_catalog())
        return self._operation.codec.describe(self._operation.route, call, self._body)


def decode_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as text, by name.

    All are decoded in one go, since they are many and short: joined by NUL, which no header holds.
    """
    joined = b"\0".join(chain.from_iterable(raw))
    parts = joined.decode("latin-1").split("\0")
    return dict(zip(parts[::2], parts[1::2], strict=True)) if joined else {}
