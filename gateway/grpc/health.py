"""gRPC's health checks (`grpc.health.v1`), as load balancers and orchestrators ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

import schemas
from adapters.formats.protobuf import load
from gateway.service import Service

SERVICE = "grpc.health.v1.Health"
_MESSAGES = load(Path(schemas.__file__).parent / "grpc_health.proto")
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3
_INTERVAL = 0.25
"""Seconds between two looks at the state, which changes as seldom."""


class HealthChecks:
    """Answers health checks.

    Args:
        service: the worker's, which is healthy if every endpoint has somebody to answer.
        services: the names that a client may ask for beside "", the server's own.
    """

    def __init__(self, service: Service, services: Collection[str]) -> None:
        self._service = service
        self._services = frozenset(("", SERVICE, *services))

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """The handlers of the methods, by path."""
        kinds = {"request_deserializer": _MESSAGES["HealthCheckRequest"].FromString}
        return {
            f"/{SERVICE}/Check": grpc.unary_unary_rpc_method_handler(self._check, **kinds),
            f"/{SERVICE}/Watch": grpc.unary_stream_rpc_method_handler(self._watch, **kinds),
        }

    async def _check(self, request: Any, context: aio.ServicerContext) -> bytes:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service '{request.service}'")
        return self._answer(request.service)

    async def _watch(self, request: Any, context: aio.ServicerContext) -> None:
        """Send the state now and whenever it changes, until the client leaves."""
        said = b""
        while True:
            if (answer := self._answer(request.service)) != said:
                said = answer
                await context.write(answer)
            if self._service.draining:
                return
            await asyncio.sleep(_INTERVAL)

    def _answer(self, name: str) -> bytes:
        if name not in self._services:
            status = _SERVICE_UNKNOWN
        else:
            status = _SERVING if self._service.health.status == "ready" else _NOT_SERVING
        answer: bytes = _MESSAGES["HealthCheckResponse"](status=status).SerializeToString()
        return answer
