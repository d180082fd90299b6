"""Errors of every kind: status, code and bytes, whole and in a stream."""

from __future__ import annotations

import json

import pytest

from adapters.databricks.dialects import DATABRICKS
from schemas import errors
from schemas.errors import KINDS, GatewayError
from tests.adapters.databricks.scenes import chat, client, server

ROWS: list[tuple[GatewayError, int, str]] = [
    (errors.InvalidRequest("m", param="n"), 400, "INVALID_PARAMETER_VALUE"),
    (errors.MalformedBody("m"), 400, "BAD_REQUEST"),
    (errors.UnsupportedFeature("m", feature="tools"), 400, "INVALID_PARAMETER_VALUE"),
    (errors.ContextLengthExceeded("m"), 400, "BAD_REQUEST"),
    (errors.Unauthorized("m"), 401, "UNAUTHENTICATED"),
    (errors.Forbidden("m"), 403, "PERMISSION_DENIED"),
    (errors.ModelNotFound("m"), 404, "RESOURCE_DOES_NOT_EXIST"),
    (errors.RouteNotFound("m"), 404, "ENDPOINT_NOT_FOUND"),
    (errors.MethodNotAllowed("m"), 405, "BAD_REQUEST"),
    (errors.Conflict("m"), 409, "RESOURCE_CONFLICT"),
    (errors.BodyTooLarge("m"), 413, "BAD_REQUEST"),
    (errors.UnsupportedMediaType("m"), 415, "BAD_REQUEST"),
    (errors.RequestTimeout("m"), 408, "DEADLINE_EXCEEDED"),
    (errors.RateLimited("m"), 429, "REQUEST_LIMIT_EXCEEDED"),
    (errors.Overloaded("m"), 503, "TEMPORARILY_UNAVAILABLE"),
    (errors.ShuttingDown("m"), 503, "TEMPORARILY_UNAVAILABLE"),
    (errors.BackendFailed("m", code="upstream_auth"), 500, "INTERNAL_ERROR"),
    (errors.BackendUnavailable("m"), 503, "TEMPORARILY_UNAVAILABLE"),
    (errors.BackendTimeout("m"), 504, "DEADLINE_EXCEEDED"),
    (errors.Incomplete("m"), 500, "INTERNAL_ERROR"),
    (errors.InternalError("m"), 500, "INTERNAL_ERROR"),
]


def test_every_kind_of_error_has_an_answer() -> None:
    assert set(DATABRICKS.wording.failures) == set(KINDS) == {error.kind for error, *_ in ROWS}


@pytest.mark.parametrize(("error", "status", "code"), ROWS, ids=lambda value: getattr(value, "kind", None))
def test_errors(error: GatewayError, status: int, code: str) -> None:
    reply = server().error(error)
    assert (reply.status, reply.media_type) == (status, "application/json")
    assert reply.body == b'{"error_code":"%b","message":"m"}' % code.encode()


@pytest.mark.parametrize(("error", "_", "code"), ROWS, ids=lambda value: getattr(value, "kind", None))
def test_errors_in_a_stream_have_both_forms(error: GatewayError, _: int, code: str) -> None:
    """OpenAI's SDK takes the platform's form alone for the end of the stream; mlflow passes the object on."""
    frame = server().encoder(chat(stream=True)).fail(error)
    assert frame.startswith(b'data: {"error":{"message":"m","type":"')
    assert frame.endswith(b'},"error_code":"%b","message":"m"}\n\n' % code.encode())
    assert json.loads(frame.removeprefix(b"data: "))["error"].keys() == {"message", "type", "param", "code"}
    with pytest.raises(GatewayError):
        client().decoder(chat(stream=True)).feed(frame)


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (errors.RateLimited("m", retry_after=1.25), {"retry-after": "2", "retry-after-ms": "1250"}),
        (errors.Overloaded("m"), {}),
        (errors.BackendFailed("m"), {"x-should-retry": "false"}),
        (errors.MethodNotAllowed("m", allowed=("POST",)), {"allow": "POST"}),
    ],
)
def test_headers(error: GatewayError, headers: dict[str, str]) -> None:
    assert dict(server().error(error).headers) == headers
