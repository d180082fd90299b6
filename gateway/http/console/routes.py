"""The routes of the console's own data. They are not requests to a model: nothing counts or logs them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

import msgspec
from litestar import HttpMethod, Request, Response, route
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from gateway.access.headers import decode_headers
from gateway.access.keys_file import Key
from gateway.http.api.health import READ
from gateway.http.console.experiments import ExperimentViews
from gateway.http.console.feed import Feed
from gateway.http.console.models import models_view
from gateway.http.console.requests import texts, visible
from gateway.http.console.session import key_of, session
from gateway.service import Service

Asked = Request[Any, Any, Any]
_REPORT_TICKS = 10
"""Ticks between two events `experiments`: a report takes the event loop milliseconds."""
_REPORT_AGE = 5.0
"""Seconds that a report may be old for a tab that got the event `experiments`: all of them ask at once."""
_FIGURES = {"live", "experiments"}
"""Topics that show the traffic of all keys."""
_STREAM = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx would collect the events


def handlers(service: Service) -> list[HTTPRouteHandler]:
    """The routes: `/v1/console/session`, and `/v1/console/events`, the one stream of a tab."""
    feed, views = Feed(service), ExperimentViews(service)

    @route("/v1/console/session", http_method=READ, include_in_schema=False, opt={"role": "ask"})
    async def current(request: Asked) -> Response[bytes]:
        """What is served, and what the key of the request may do."""
        key = key_of(service, decode_headers(request.scope["headers"]))
        return Response(msgspec.json.encode(session(service, key)), media_type="application/json")

    @route("/v1/console/events", http_method=HttpMethod.GET, include_in_schema=False, opt={"role": "ask"})
    async def events(request: Asked) -> Stream:
        """Server-sent events: `changed` when the session must be read again; a comment where nothing has happened."""
        key = key_of(service, decode_headers(request.scope["headers"]))
        topics = set(request.query_params.get("topics", "").split(","))
        if key is not None and not key.may("metrics"):
            topics -= _FIGURES
        return Stream(_written(feed, topics, key), media_type="text/event-stream", headers=_STREAM)

    @route("/v1/console/experiment", http_method=READ, include_in_schema=False, opt={"role": "metrics"})
    async def experiment(request: Asked) -> Response[bytes]:
        """The experiment of the endpoint `?endpoint=`; with `?shared=`, one that another tab was sent seconds ago."""
        service.keys.check(decode_headers(request.scope["headers"]), "metrics")
        name = request.query_params.get("endpoint", "")
        max_age = _REPORT_AGE if "shared" in request.query_params else 0.0
        return Response(views.of(name, max_age), media_type="application/json")

    @route("/v1/console/live", http_method=READ, include_in_schema=False, opt={"role": "metrics"})
    async def live(request: Asked) -> Response[bytes]:
        """The points of the last 15 minutes, the oldest first."""
        service.keys.check(decode_headers(request.scope["headers"]), "metrics")
        return Response(msgspec.json.encode([*service.live.points]), media_type="application/json")

    @route("/v1/console/requests", http_method=READ, include_in_schema=False, opt={"role": "ask"})
    async def requests(request: Asked) -> Response[bytes]:
        """The last requests of all workers that the key may see; with `?id=`, the texts of one."""
        key = key_of(service, decode_headers(request.scope["headers"]))
        if (wanted := request.query_params.get("id")) is not None:
            return Response(msgspec.json.encode(await texts(service, key, wanted)), media_type="application/json")
        entries, _ = service.requests.since({})
        return Response(b"[%b]" % b",".join(visible(entries, key)), media_type="application/json")

    @route("/v1/console/models", http_method=READ, include_in_schema=False, opt={"role": "metrics"})
    async def models(request: Asked) -> Response[bytes]:
        """What is loaded, where, and how it is."""
        service.keys.check(decode_headers(request.scope["headers"]), "metrics")
        return Response(msgspec.json.encode(models_view(service)), media_type="application/json")

    return [current, events, experiment, live, requests, models]


async def _written(feed: Feed, topics: Collection[str], key: Key | None) -> AsyncIterator[bytes]:
    """The events of a tab: `changed`, and those of its topics."""
    revision = -1
    async for tick in feed.ticks():
        parts = []
        if tick.revision != revision:
            revision = tick.revision
            parts.append(b"event: changed\ndata: %d\n\n" % revision)
        if "experiments" in topics and tick.number % _REPORT_TICKS == 0:
            parts.append(b"event: experiments\ndata: %d\n\n" % tick.number)
        if "live" in topics and tick.point:
            parts.append(tick.point)
        if "requests" in topics and (entries := visible([*tick.requests], key)):
            parts.append(b"event: requests\ndata: [%b]\n\n" % b",".join(entries))
        yield b"".join(parts) or b":\n\n"  # a comment lets the tab see that the server is there
