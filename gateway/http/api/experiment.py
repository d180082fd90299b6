"""The report of an endpoint's experiment, the reset of its figures, the restart of its ramp. Routes of no protocol.

Raw ASGI: Litestar would match the mount of the protocols before a route with a path parameter. These handlers run
without a `RequestHandler`, so they check the key and refresh by themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from litestar.types import HTTPScope, Send

from gateway.access.headers import decode_headers
from gateway.service import Service
from schemas.errors import ModelNotFound

Handler = Callable[[Service, str, HTTPScope, Send], Awaitable[None]]


async def report(service: Service, name: str, scope: HTTPScope, send: Send) -> None:
    """Send the report of the endpoint `name`.

    Raises:
        schemas.errors.RequestError: a wrong key, no such endpoint, or it has no experiment.
    """
    service.keys.check(decode_headers(scope["headers"]), "metrics")
    _find(service, name)
    await _reply(service, scope, send, msgspec.json.encode(service.ramps.full_report(name)))


async def reset(service: Service, name: str, scope: HTTPScope, send: Send) -> None:
    """Have the figures of the endpoint `name` begin anew; arms that guardrails have stopped get their share again.

    Raises:
        schemas.errors.RequestError: a wrong key, no such endpoint, or it has no experiment.
    """
    by = service.keys.check_reset(decode_headers(scope["headers"]))
    _find(service, name)
    await service.changes.reset(name, by)
    await _reply(service, scope, send, msgspec.json.encode(service.ramps.full_report(name)))


async def restart_ramp(service: Service, name: str, scope: HTTPScope, send: Send) -> None:
    """Have the ramp of the endpoint `name` begin anew, with no share for its arm and new figures.

    Raises:
        schemas.errors.RequestError: a wrong key, no such endpoint, it has no ramp, or is being updated.
    """
    by = service.keys.check_reset(decode_headers(scope["headers"]))
    _find(service, name)
    await service.changes.restart_ramp(name, by)
    await _reply(service, scope, send, msgspec.json.encode(service.ramps.full_report(name)))


PATHS: dict[str, tuple[str, Handler]] = {
    "/serving-endpoints/{name}/experiment": ("GET", report),
    "/serving-endpoints/{name}/experiment/reset": ("POST", reset),
    "/serving-endpoints/{name}/experiment/ramp/restart": ("POST", restart_ramp),
}
"""Path -> method and handler."""


def _find(service: Service, name: str) -> None:
    service.refresh()
    if name not in service.catalog.cards:
        raise ModelNotFound(f"Endpoint with name '{name}' does not exist.")


async def _reply(service: Service, scope: HTTPScope, send: Send, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", service.new_id().encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body, "more_body": False})
