"""Errors as Databricks' clients see them. The code matters: mlflow derives the status from it."""

from __future__ import annotations

import msgspec

from adapters.base import Reply
from adapters.databricks.dialects import Dialect
from adapters.openai.inbound.failures import describe_error, failure_headers
from schemas.databricks import ErrorResponse, StreamError
from schemas.errors import GatewayError


def failure_reply(dialect: Dialect, error: GatewayError) -> Reply:
    """The error as an answer."""
    failure = dialect.wording.failures[error.kind]
    body = ErrorResponse(failure.code or "", failure.text.format(message=error.message))
    return Reply(msgspec.json.encode(body), failure.status, headers=failure_headers(dialect, error))


def failure_event(dialect: Dialect, error: GatewayError) -> bytes:
    """The error's data in a stream: both forms, because OpenAI's clients know an error by its `error` only."""
    code, said = dialect.wording.failures[error.kind].code or "", describe_error(dialect, error)
    return msgspec.json.encode(StreamError(said, code, said.message))
