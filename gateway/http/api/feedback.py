"""`POST /v1/feedback`: a user's value of a metric for an answer. A route of no protocol."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from gateway.access.headers import decode_headers
from gateway.experiments.experiments import UnknownAnswer
from gateway.experiments.feedback_ring import name_of
from gateway.http.reading.body import read_body
from gateway.service import Service
from schemas.errors import InvalidRequest, UnsupportedMediaType

_JSON = re.compile(r"application/json\s*(;|$)", re.IGNORECASE)


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body.

    Attributes:
        metric: one of the endpoint's `experiment.feedback`.
        value: what the user says.
        request_id: the answer's `x-request-id`.
        client_request_id: in its place, the id that the client gave its request; the latest such answer is meant.
    """

    metric: str
    value: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
    request_id: str | None = None
    client_request_id: str | None = None


def handler(service: Service) -> HTTPRouteHandler:
    """Return the route."""

    @post("/v1/feedback", include_in_schema=False, status_code=204, opt={"role": "ask"})
    async def feedback(request: Request[Any, Any, Any]) -> Response[None]:
        """Take a user's value of a metric for an answer."""
        headers = decode_headers(request.scope["headers"])
        service.keys.check(headers)
        if not _JSON.match(headers.get("content-type", "")):
            raise UnsupportedMediaType("The feedback must be JSON: 'content-type: application/json'.")
        body = await read_body(request.receive, headers, service.limits)
        if body is not None:  # else the client has left
            # Another worker may have changed the endpoint meanwhile: feedback counts in an experiment that still runs.
            service.refresh()
            given = _read(body)
            name = _name(given, service.keys.owner(headers))
            try:
                service.experiments.feedback(name, given.metric, given.value)
            except UnknownAnswer:
                if service.shared is None:
                    raise
                await service.shared.feedback(name, given.metric, given.value)
        return Response(None, status_code=204)

    return feedback


def _read(body: bytes) -> Feedback:
    try:
        return msgspec.json.decode(body, type=Feedback)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # RecursionError: deeply nested JSON
        raise InvalidRequest(f"The feedback cannot be read: {error}") from None


def _name(given: Feedback, owner: bytes) -> bytes:
    if given.request_id is not None and given.client_request_id is None:
        return name_of(given.request_id, owner)
    if given.client_request_id is not None and given.request_id is None:
        return name_of(given.client_request_id, owner, of_client=True)
    raise InvalidRequest("Send either `request_id` or `client_request_id`.", param="request_id")
