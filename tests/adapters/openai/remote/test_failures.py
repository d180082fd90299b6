"""Errors of remotes."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.base import Reply
from schemas.errors import (
    BackendError,
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    BodyTooLarge,
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
)
from tests.adapters.openai.remote_scenes import chunk, read, talk
from tests.adapters.openai.scenes import client, reply

OPENAI_ERROR = {"error": {"message": "Bad n.", "type": "invalid_request_error", "param": "n", "code": "c"}}


@pytest.mark.parametrize(
    ("event", "kind", "message"),
    [
        (OPENAI_ERROR, BackendFailed, "The backend failed."),
        ({"error": {"message": "x", "code": 400}}, InvalidRequest, "x"),
        ({"error": {"message": "x", "code": 503}}, BackendUnavailable, "The backend is unavailable."),
        ({"error": {"message": "x", "http_status_code": 422}}, InvalidRequest, "x"),
        ({"error": "x", "error_type": "overloaded"}, Overloaded, "The backend is overloaded."),
        ({"error": "x", "error_type": "generation"}, BackendFailed, "The backend failed."),
        ({"object": "error", "message": "x", "code": 400}, InvalidRequest, "x"),
        ({"error_code": "INTERNAL_ERROR", "message": "x"}, BackendFailed, "The backend failed."),
        ({"error_code": "DEADLINE_EXCEEDED", "message": "x"}, BackendTimeout, "The backend timed out."),
        ({"error": {"message": "x", "code": "context_length_exceeded"}}, ContextLengthExceeded, "x"),
    ],
)
def test_errors_in_a_stream(event: Any, kind: type[GatewayError], message: str) -> None:
    with pytest.raises(kind) as caught:
        read(chunk(content="a"), event, done=False)
    assert caught.value.message == message
    with pytest.raises(kind):
        client().decode(talk(), reply(event))


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (reply(OPENAI_ERROR, 400), InvalidRequest, "Bad n."),
        (reply({"error": "Bad n.", "error_type": "validation"}, 422), InvalidRequest, "Bad n."),
        (reply({"object": "error", "message": "Bad n.", "code": 400}, 400), InvalidRequest, "Bad n."),
        (reply({"error_code": "BAD_REQUEST", "message": "Bad n."}, 400), InvalidRequest, "Bad n."),
        (reply({"detail": [{"msg": "secret"}]}, 422), InvalidRequest, "The backend refused the request."),
        (reply(b"<html>secret</html>", 400), InvalidRequest, "The backend refused the request."),
        (
            reply({"error": {"message": "This model's maximum context length is 10 tokens."}}, 400),
            ContextLengthExceeded,
            "This model's maximum context length is 10 tokens.",
        ),
        (reply({"error": {"message": "No model."}}, 404), ModelNotFound, "No model."),
        (reply({"error": {"message": "Too big."}}, 413), BodyTooLarge, "Too big."),
        (reply({"error": {"message": "secret"}}, 401), BackendFailed, "The backend failed."),
        (reply({"error": {"message": "secret"}}, 403), BackendFailed, "The backend failed."),
        (reply({"error": {"message": "secret"}}, 429), Overloaded, "The backend is overloaded."),
        (reply({"error": {"message": "secret"}}, 500), BackendFailed, "The backend failed."),
        (reply(b"secret", 502), BackendUnavailable, "The backend is unavailable."),
        (reply(b"secret", 503), BackendUnavailable, "The backend is unavailable."),
        (reply(b"", 504), BackendTimeout, "The backend timed out."),
    ],
)
def test_errors(answer: Reply, kind: type[GatewayError], message: str) -> None:
    error = client().error(answer)
    assert type(error) is kind
    assert error.message == message
    assert isinstance(error, BackendError) == (kind in (BackendFailed, BackendUnavailable, BackendTimeout))


def test_errors_keep_the_name_of_the_field_at_fault() -> None:
    error = client().error(reply(OPENAI_ERROR, 400))
    assert (error.param, error.code) == ("n", "c")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ((("Retry-After", "7"),), 7.0),
        ((("retry-after", "7"), ("retry-after-ms", "250")), 0.25),
        ((("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"),), None),
        ((), None),
    ],
)
def test_the_delay_before_a_retry(headers: Any, seconds: float | None) -> None:
    assert client().error(reply(b"", 429, *headers)).retry_after == seconds
    assert client().error(reply(b"", 503, *headers)).retry_after == seconds
