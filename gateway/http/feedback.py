"""`POST /v1/feedback`: a client's own metric for an answer, counted for the arm that gave it. It is no protocol's."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from gateway.service import Service
from schemas.errors import InvalidRequest


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body: an answer's `x-request-id`, a metric of the endpoint's `experiment.feedback`, and its value."""

    request_id: str
    metric: str
    value: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]


def handler(service: Service) -> HTTPRouteHandler:
    """Return the route."""

    @post("/v1/feedback", include_in_schema=False, status_code=204)
    async def feedback(request: Request[Any, Any, Any]) -> Response[None]:
        service.keys.check({name.lower(): value for name, value in request.headers.items()})
        service.feedback(*msgspec.structs.astuple(_read(await request.body())))
        return Response(None, status_code=204)

    return feedback


def _read(body: bytes) -> Feedback:
    try:
        return msgspec.json.decode(body, type=Feedback)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The feedback cannot be read: {error}") from None
