"""Every kind of error in both dialects."""

from __future__ import annotations

import pytest

from adapters.triton.dialects import DIALECTS
from schemas import errors
from schemas.errors import KINDS, GatewayError
from tests.adapters.triton.cases import SERVERS

SAMPLES: dict[str, GatewayError] = {
    "invalid_request": errors.InvalidRequest("bad"),
    "malformed_body": errors.MalformedBody("bad"),
    "unsupported": errors.UnsupportedFeature("The model 'm' does not support min p yet.", feature="min_p"),
    "context_length": errors.ContextLengthExceeded("too long"),
    "unauthorized": errors.Unauthorized("no key"),
    "forbidden": errors.Forbidden("no"),
    "model_not_found": errors.ModelNotFound("Request for unknown model: 'm' is not found"),
    "route_not_found": errors.RouteNotFound("No route for GET /x."),
    "method_not_allowed": errors.MethodNotAllowed("Not that way.", allowed=("GET", "HEAD")),
    "conflict": errors.Conflict("taken"),
    "body_too_large": errors.BodyTooLarge("too large"),
    "unsupported_media_type": errors.UnsupportedMediaType("what?"),
    "request_timeout": errors.RequestTimeout("too slow"),
    "rate_limited": errors.RateLimited("too often", retry_after=0.1),
    "overloaded": errors.Overloaded("full", retry_after=3),
    "shutting_down": errors.ShuttingDown("bye"),
    "backend_failed": errors.BackendFailed("failed"),
    "backend_unavailable": errors.BackendUnavailable("gone"),
    "timeout": errors.BackendTimeout("late"),
    "incomplete": errors.Incomplete("cut"),
    "internal": errors.InternalError(),
}

ROWS = [
    ("invalid_request", 400, 422, "Input Validation Error", "bad"),
    ("malformed_body", 400, 422, "Input Validation Error", "bad"),
    (
        "unsupported",
        501,
        422,
        "Input Validation Error",
        "parameter 'min_p' is not supported: The model 'm' does not support min p yet.",
    ),
    ("context_length", 400, 422, "Input Validation Error", "too long"),
    ("unauthorized", 401, 401, "Unauthorized", "no key"),
    ("forbidden", 403, 403, "Forbidden", "no"),
    ("model_not_found", 404, 404, "NotFoundError", "Request for unknown model: 'm' is not found"),
    ("route_not_found", 404, 404, "NotFoundError", "Not Found"),
    ("method_not_allowed", 405, 405, "Method Not Allowed", "Method Not Allowed"),
    ("conflict", 409, 409, "Conflict", "taken"),
    ("body_too_large", 413, 413, "Payload Too Large", "too large"),
    ("unsupported_media_type", 415, 415, "Unsupported Media Type", "what?"),
    ("request_timeout", 408, 408, "Request Timeout", "too slow"),
    ("rate_limited", 503, 429, "Too Many Requests", "too often"),
    ("overloaded", 503, 503, "Service Unavailable", "full"),
    ("shutting_down", 503, 503, "Service Unavailable", "bye"),
    ("backend_failed", 500, 424, "Generation Error", "failed"),
    ("backend_unavailable", 503, 503, "Service Unavailable", "gone"),
    ("timeout", 503, 500, "Incomplete Generation", "late"),
    ("incomplete", 500, 500, "Incomplete Generation", "cut"),
    ("internal", 500, 500, "Incomplete Generation", "The server had an error while processing the request."),
]


@pytest.mark.parametrize(("kind", "triton", "mindie", "type", "message"), ROWS, ids=[row[0] for row in ROWS])
def test_status_and_message_of_every_kind(kind: str, triton: int, mindie: int, type: str, message: str) -> None:
    reply = SERVERS["triton"].error(SAMPLES[kind])
    assert (reply.status, reply.media_type) == (triton, "application/json")
    assert reply.body == f'{{"error":"{message}"}}'.encode()
    reply = SERVERS["mindie-triton"].error(SAMPLES[kind])
    assert reply.status == mindie
    assert reply.body == f'{{"error":"{message}","error_type":"{type}"}}'.encode()


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
def test_every_kind_has_a_row(dialect) -> None:
    assert set(dialect.wording.statuses) == set(KINDS) == {row[0] for row in ROWS}
    assert not dialect.wording.error_types or set(dialect.wording.statuses.values()) <= set(dialect.wording.error_types)


def test_headers() -> None:
    server = SERVERS["triton"]
    assert server.error(SAMPLES["rate_limited"]).headers == (("Retry-After", "1"),)
    assert server.error(SAMPLES["overloaded"]).headers == (("Retry-After", "3"),)
    assert server.error(SAMPLES["method_not_allowed"]).headers == (("Allow", "GET, HEAD"),)
    assert server.error(SAMPLES["internal"]).headers == ()


@pytest.mark.parametrize(
    ("feature", "parameter"),
    [("images", "image"), ("lora_adapters", "lora_name"), ("grammar", "structured_outputs"), ("new", "new")],
)
def test_an_unsupported_feature_is_named_by_its_parameter(feature: str, parameter: str) -> None:
    reply = SERVERS["triton"].error(errors.UnsupportedFeature("No.", feature=feature))
    assert reply.body == f'{{"error":"parameter \'{parameter}\' is not supported: No."}}'.encode()
