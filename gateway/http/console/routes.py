"""The routes of the console's own data. They are not requests to a model: nothing counts or logs them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from litestar import HttpMethod, Request, Response, route
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from gateway.http.api.health import READ
from gateway.http.console.feed import Feed
from gateway.http.console.session import key_of, session
from gateway.http.request import decode_headers
from gateway.service import Service

Asked = Request[Any, Any, Any]
_STREAM = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx would collect the events


def handlers(service: Service) -> list[HTTPRouteHandler]:
    """The routes: `/v1/console/session`, and `/v1/console/events`, the one stream of a tab."""
    feed = Feed(service)

    @route("/v1/console/session", http_method=READ, include_in_schema=False, opt={"role": "ask"})
    async def current(request: Asked) -> Response[bytes]:
        """What is served, and what the key of the request may do."""
        key = key_of(service, decode_headers(request.scope["headers"]))
        return Response(msgspec.json.encode(session(service, key)), media_type="application/json")

    @route("/v1/console/events", http_method=HttpMethod.GET, include_in_schema=False, opt={"role": "ask"})
    async def events(request: Asked) -> Stream:
        """Server-sent events: `changed` when the session must be read again; a comment where nothing has happened."""
        key_of(service, decode_headers(request.scope["headers"]))
        return Stream(_written(feed), media_type="text/event-stream", headers=_STREAM)

    return [current, events]


async def _written(feed: Feed) -> AsyncIterator[bytes]:
    revision = -1
    async for tick in feed.ticks():
        if tick.revision != revision:
            revision = tick.revision
            yield b"event: changed\ndata: %d\n\n" % revision
        else:
            yield b":\n\n"  # lets the tab see that the server is there
