"""`GET /serving-endpoints/{name}/experiment`: the report of an endpoint's experiment. A route of no protocol."""

from __future__ import annotations

import msgspec
from litestar.types import HTTPScope, Send

from gateway.http.request import decode_headers
from gateway.service import Service
from schemas.errors import MethodNotAllowed, ModelNotFound

PATH = "/serving-endpoints/{name}/experiment"


async def answer(service: Service, name: str, scope: HTTPScope, send: Send) -> None:
    """Send the report of the endpoint `name`.

    Raw ASGI: Litestar would match the mount of the protocols before a route with a path parameter.

    Raises:
        schemas.errors.RequestError: a wrong method or key, no such endpoint, or it has no experiment.
    """
    if scope["method"] not in ("GET", "HEAD"):
        raise MethodNotAllowed(f"Method {scope['method']} is not allowed here.", allowed=("GET", "HEAD"))
    # This handler runs without a `RequestHandler`, so it checks the key and refreshes by itself.
    service.keys.check(decode_headers(scope["headers"]))
    service.refresh()
    if name not in service.catalog.cards:
        raise ModelNotFound(f"Endpoint with name '{name}' does not exist.")
    body = msgspec.json.encode(service.report(name))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", service.new_id().encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body, "more_body": False})
