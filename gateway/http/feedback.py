"""`POST /v1/feedback`: a user's value of a metric for an answer. A route of no protocol."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from gateway.http.body import read_body
from gateway.http.request import decode_headers
from gateway.service import Service
from schemas.errors import InvalidRequest, UnsupportedMediaType

_JSON = re.compile(r"application/json\s*(;|$)", re.IGNORECASE)


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body: `request_id` is an answer's `x-request-id`, `metric` one of the endpoint's `experiment.feedback`."""

    request_id: str
    metric: str
    value: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]


def handler(service: Service) -> HTTPRouteHandler:
    """Return the route."""

    @post("/v1/feedback", include_in_schema=False, status_code=204)
    async def feedback(request: Request[Any, Any, Any]) -> Response[None]:
        headers = decode_headers(request.scope["headers"])
        service.keys.check(headers)
        if not _JSON.match(headers.get("content-type", "")):
            raise UnsupportedMediaType("The feedback must be JSON: 'content-type: application/json'.")
        body = await read_body(request.receive, headers, service.limits)
        if body is not None:  # else the client has left
            # Another worker may have changed the endpoint meanwhile: feedback counts in an experiment that still runs.
            service.refresh()
            service.experiments.feedback(*msgspec.structs.astuple(_read(body)))
        return Response(None, status_code=204)

    return feedback


def _read(body: bytes) -> Feedback:
    try:
        return msgspec.json.decode(body, type=Feedback)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # RecursionError: deeply nested JSON
        raise InvalidRequest(f"The feedback cannot be read: {error}") from None
