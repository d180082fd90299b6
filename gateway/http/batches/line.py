"""One line of a batch: a request like a live one, without a connection.

It takes the path of every request from its decoding on: router, limits, filters, experiment, cache, accounting, record.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
from litestar.types import HTTPReceiveMessage, HTTPScope, HTTPSendMessage, Send
from msgspec.structs import replace

from adapters.base import Call, Reply
from gateway.http.client import AsgiClient
from gateway.http.observation.observer import RequestObserver
from gateway.http.reading.request_reader import RequestReader
from gateway.http.request import RequestHandler
from gateway.mounts import Operation
from gateway.service import Service
from schemas.catalog import Change
from schemas.errors import InvalidRequest
from schemas.ir import Embed, Generate, Request

_SCOPE = cast(HTTPScope, {"type": "http", "method": "POST", "headers": [], "extensions": {}})


class LineAnswer(msgspec.Struct, frozen=True):
    """The HTTP answer of a line. `retry_after`: seconds after which it may be asked again; None: it has its answer."""

    status: int
    request_id: str
    body: bytes
    retry_after: float | None = None


class LineReader(RequestReader):
    """Reads one line: its body is there, and its key is that of the batch."""

    __slots__ = ("_body", "_key_owner")

    def __init__(self, *given: Any, owner: str, body: bytes) -> None:
        super().__init__(*given)
        self._key_owner = owner
        self._body = body

    async def read(self, _: RequestObserver) -> tuple[Call, bytes] | None:
        """The line, with the rights of its key as they are now: the batch may be a day old."""
        self._account.key = self._service.keys.of_owner(self._key_owner)
        self._service.refresh()
        catalog = self.shown(self._service.catalog)
        if self.operation.endpoint is not None:
            catalog = replace(catalog, default=self.operation.endpoint)
        return Call(self._account.request_id, catalog), self._body

    async def decode(self, call: Call, body: bytes) -> Request | Change | Reply:
        """What the line asks for, in the background of all others.

        Raises:
            schemas.errors.RequestError: it asks for what a batch has not, or the protocol cannot read it.
        """
        request = await super().decode(call, body)
        if isinstance(request, Generate):
            if request.stream:
                raise InvalidRequest("Answers in batches are not streamed: leave 'stream' out.", param="stream")
            if request.detached:
                raise InvalidRequest(
                    "A batch is in the background as a whole: leave 'background' out.", param="background"
                )
            return replace(request, background=True, flow=f"batch:{self._key_owner}")
        return replace(request, flow=f"batch:{self._key_owner}") if isinstance(request, Embed) else request


class LineRequest(RequestHandler):
    """Answers one line.

    Args:
        service: the worker's.
        operation: the route that lines of the batch are for.
        owner: the digest of the key that made the batch.
        body: of the request.
    """

    __slots__ = ("_answered", "_headers", "_status")

    def __init__(self, service: Service, operation: Operation, owner: str, body: bytes) -> None:
        super().__init__(service, operation, {}, _SCOPE, AsgiClient(_stays, cast(Send, self._take)))
        self._reader = LineReader(service, operation, {}, _SCOPE, self._client, self._account, owner=owner, body=body)
        self._status = 0
        self._headers: dict[str, str] = {}
        self._answered = b""

    async def ask(self) -> LineAnswer:
        """The answer."""
        await self.run()
        retry_after = None
        # As a client would: these statuses say that it is worth asking again, 429 only with a time.
        if self._status in (503, 529) or (self._status == 429 and "retry-after" in self._headers):
            retry_after = float(self._headers.get("retry-after", 0))
        return LineAnswer(self._status, self._account.request_id, self._answered, retry_after)

    async def _take(self, message: HTTPSendMessage) -> None:
        """Take a part of the answer, as ASGI's `send`."""
        part: Any = message
        if part["type"] == "http.response.start":
            self._status = part["status"]
            self._headers = {name.decode(): value.decode("latin-1") for name, value in part["headers"]}
        else:
            self._answered += part["body"]


async def _stays() -> HTTPReceiveMessage:
    """ASGI's `receive` of a client that never leaves."""
    return cast(HTTPReceiveMessage, await asyncio.get_running_loop().create_future())
