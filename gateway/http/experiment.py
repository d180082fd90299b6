"""`GET /serving-endpoints/{name}/experiment`: the report of an endpoint's experiment. It is no protocol's."""

from __future__ import annotations

import msgspec
from litestar.types import HTTPScope, Send

from gateway.service import Service
from schemas.errors import MethodNotAllowed, ModelNotFound

PATH = "/serving-endpoints/{name}/experiment"


async def answer(service: Service, name: str, scope: HTTPScope, send: Send) -> None:
    """Answer a request for the report of endpoint `name`.

    Raw ASGI: Litestar would prefer the mount to a route with a parameter.

    Raises:
        schemas.errors.RequestError: the key, the method or the endpoint is wrong.
    """
    if scope["method"] not in ("GET", "HEAD"):
        raise MethodNotAllowed(f"Method {scope['method']} is not allowed here.", allowed=("GET", "HEAD"))
    service.keys.check({key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]})
    service.refresh()
    if name not in service.experiments:
        raise ModelNotFound(f"Endpoint with name '{name}' does not exist.")
    body = msgspec.json.encode(service.experiments[name].report())
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    body = b"" if scope["method"] == "HEAD" else body
    await send({"type": "http.response.body", "body": body, "more_body": False})
