"""Errors of remotes, and which of their messages a client sees."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import errors
from tests.adapters.tgi.scenes import client, reply

SECRET = "http://10.0.0.7 said: sk-123"


def meant(body: Any, status: int, *headers: tuple[str, str]) -> errors.GatewayError:
    return client("tgi").error(reply(body, status, *headers))


@pytest.mark.parametrize(
    ("status", "type", "error"),
    [
        (400, "Bad Request", errors.InvalidRequest),
        (422, "validation", errors.InvalidRequest),
        (422, "Input Validation Error", errors.InvalidRequest),
        (404, "NotFoundError", errors.ModelNotFound),
        (413, "validation", errors.BodyTooLarge),
        (429, "overloaded", errors.Overloaded),
        (503, "Service Unavailable", errors.BackendUnavailable),
        (503, "healthcheck", errors.BackendUnavailable),
        (408, "timeout", errors.BackendTimeout),
        (504, "", errors.BackendTimeout),
        (424, "generation", errors.BackendFailed),
        (424, "Generation Error", errors.BackendFailed),
        (500, "incomplete_generation", errors.Incomplete),
        (500, "Incomplete Generation", errors.Incomplete),
        (500, "", errors.BackendFailed),
        (502, "", errors.BackendUnavailable),
        (401, "", errors.BackendFailed),
        (403, "", errors.BackendFailed),
    ],
)
def test_status(status: int, type: str, error: type[errors.GatewayError]) -> None:
    got = meant({"error": SECRET, "error_type": type}, status)
    assert got.__class__ is error
    assert (SECRET in got.message) == (status in (400, 404, 413, 422))


def test_the_prefix_of_validation_errors_is_removed() -> None:
    got = meant({"error": "Input validation error: `top_p` must be > 0.0", "error_type": "validation"}, 422)
    assert got.message == "`top_p` must be > 0.0"


@pytest.mark.parametrize(
    "message",
    [
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 10. Given: 9 `inputs` tokens and 2",
        "Input validation error: `inputs` must have less than 10 tokens. Given: 11",
        "Inputs token length must be in (0, 10], but got 11",
    ],
)
def test_a_prompt_that_is_too_long(message: str) -> None:
    assert isinstance(meant({"error": message, "error_type": "validation"}, 422), errors.ContextLengthExceeded)


@pytest.mark.parametrize("value", ["7", "x", "-1", "1.5"])
def test_retry_after(value: str) -> None:
    got = meant({"error": "x", "error_type": "overloaded"}, 429, ("Retry-After", value))
    assert got.retry_after == (7.0 if value == "7" else None)


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"[" * 2000, b"5", b'{"error":5}'])
def test_bodies_without_an_error_object(body: bytes) -> None:
    assert isinstance(meant(body, 500), errors.BackendFailed)
    assert isinstance(meant(body, 422), errors.InvalidRequest)
