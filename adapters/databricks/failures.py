"""Errors in Databricks' words. The code matters: mlflow derives the status from it."""

from __future__ import annotations

import msgspec

from adapters.base import Reply
from adapters.databricks.dialects import Dialect
from adapters.dialect import row_for
from adapters.openai.inbound.failures import error_headers, wire_error
from schemas.databricks import ErrorResponse, StreamError
from schemas.errors import GatewayError


def error_reply(dialect: Dialect, error: GatewayError) -> Reply:
    """The reply to an error."""
    failure = row_for(dialect.wording.failures, error)
    # mlflow maps the code to a status and ignores the HTTP status; the SDK prefers the code, too.
    body = ErrorResponse(failure.code or "", failure.text.format(message=error.message))
    return Reply(msgspec.json.encode(body), failure.status, headers=error_headers(dialect, error))


def error_event(dialect: Dialect, error: GatewayError) -> bytes:
    """The data of an error event: in Databricks' form and in OpenAI's, whose clients look for the field `error`."""
    code, described = row_for(dialect.wording.failures, error).code or "", wire_error(dialect, error)
    return msgspec.json.encode(StreamError(described, code, described.message))
