"""Is it alive, can it answer, what has it counted: routes that belong to no protocol and want no key."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.service import Service


def handlers(service: Service) -> list[HTTPRouteHandler]:
    """`/health`, `/ping` and `GET /` answer while the process lives, `/health/ready` once it can serve."""

    @get(["/health", "/ping"], include_in_schema=False)
    async def alive() -> Response[bytes]:
        return Response(b"", media_type="text/plain")

    @get("/health/ready", include_in_schema=False)
    async def ready() -> Response[bytes]:
        health = service.health
        status = 200 if health.status == "ready" else 503
        return Response(msgspec.json.encode(health), status_code=status, media_type="application/json")

    @get("/metrics", include_in_schema=False)
    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        service.keys.check({name.lower(): value for name, value in request.headers.items()})
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return [alive, ready, *([metrics] if service.config.server.metrics else [])]
