"""Liveness, readiness and metrics: routes of no protocol. Health needs no key, metrics does."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import HttpMethod, Request, Response, route
from litestar.handlers import HTTPRouteHandler
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.access.headers import decode_headers
from gateway.service import Service

READ = (HttpMethod.GET, HttpMethod.HEAD)
"""The methods of read-only routes."""


def handlers(service: Service) -> list[HTTPRouteHandler]:
    """The routes: `/health` and `/ping` answer while the process lives, `/health/ready` once every endpoint can."""

    # `/ping` is the liveness path of Amazon SageMaker's hosting; both need neither a backend nor a key.
    @route(["/health", "/ping"], http_method=READ, include_in_schema=False)
    async def alive() -> Response[bytes]:
        """Answer while the process lives."""
        return Response(b"", media_type="text/plain")

    @route("/health/ready", http_method=READ, include_in_schema=False)
    async def ready() -> Response[bytes]:
        """Answer 200 once every endpoint can answer, else 503 with the reason."""
        health = service.health
        status = 200 if health.status == "ready" else 503
        return Response(msgspec.json.encode(health), status_code=status, media_type="application/json")

    @route("/metrics", http_method=READ, include_in_schema=False, opt={"role": "metrics"})
    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Metrics in Prometheus' format, summed over all workers."""
        # Metrics name models and show traffic, so they need a key where requests do.
        service.keys.check(decode_headers(request.scope["headers"]), "metrics")
        service.ended.make()
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return [alive, ready, *([metrics] if service.config.server.metrics else [])]
