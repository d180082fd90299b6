"""Errors of remotes decoded. The remote's message reaches the client only where the client can correct the request.

Errors have OpenAI's form, TGI's (`error` is the message), vLLM's and SGLang's (`message` and `code` at the top level)
or Databricks' (`error_code` and `message`).
"""

from __future__ import annotations

from typing import Any

from adapters.base import Reply
from adapters.remote_failures import REFUSED, failure_of, read_error, retry_after
from schemas.errors import ContextLengthExceeded, GatewayError, InvalidRequest
from schemas.openai.remote import RemoteAnswer

# Servers agree on no code: OpenAI's code, vLLM's, SGLang's and TGI's sentences.
_CONTEXT_LENGTH_SIGNS = (
    "context_length_exceeded",
    "maximum context length",
    "max_model_len",
    "longer than the model's context",
    "`inputs` tokens + `max_new_tokens` must be",
    "`inputs` must have less than",
)
_STATUS_OF_CODE = {
    "context_length_exceeded": 400,
    "rate_limit_exceeded": 429,
    "server_is_overloaded": 503,
    "model_not_found": 404,
    "invalid_prompt": 400,
    "validation": 422,
    "overloaded": 429,
    "Input Validation Error": 422,
    "BAD_REQUEST": 400,
    "INVALID_PARAMETER_VALUE": 400,
    "RESOURCE_DOES_NOT_EXIST": 404,
    "ENDPOINT_NOT_FOUND": 404,
    "REQUEST_LIMIT_EXCEEDED": 429,
    "TEMPORARILY_UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""The code of an error without a status, in a stream -> the HTTP status that it stands for."""


def is_error(answer: RemoteAnswer) -> bool:
    """Whether a whole answer or an event is an error."""
    # `error: null` is no error; "object": "error" is vLLM's.
    return bool(answer.error) or answer.error_code is not None or answer.object == "error"


def event_failure(answer: RemoteAnswer) -> GatewayError:
    """The error of an event, or of an answer with status 200."""
    error = answer.error if isinstance(answer.error, dict) else {}
    # A number is a status itself (vLLM's `code`, TGI's `http_status_code`, Groq's `status_code`), a word is looked up.
    codes = (answer.code, *map(error.get, ("code", "http_status_code", "status_code")))
    for code in (*codes, answer.error_code, answer.error_type):
        status = _STATUS_OF_CODE.get(code) if isinstance(code, str) else code
        if isinstance(status, int) and 400 <= status < 600:
            return _failure(status, answer, None)
    # No known code: a failure of the remote, whose message the client does not see.
    return _failure(500, answer, None)


def remote_failure(reply: Reply) -> GatewayError:
    """The error of a reply with an error status."""
    return _failure(reply.status, read_error(reply.body, RemoteAnswer), retry_after(reply.headers))


def _failure(status: int, answer: RemoteAnswer, retry_after: float | None) -> GatewayError:
    message = _message(answer)
    if status in (400, 422):
        param, code = _text(answer, "param"), _text(answer, "code")
        if any(sign in message or sign == code for sign in _CONTEXT_LENGTH_SIGNS):
            return ContextLengthExceeded(message, param=param)
        refused = InvalidRequest(message, param=param, code=code)
        refused.failed_generation = _text(answer, "failed_generation")
        return refused
    return failure_of(status, message, retry_after)


def _message(answer: RemoteAnswer) -> str:
    for message in (_text(answer, "message"), answer.error, answer.message):
        if isinstance(message, str) and message:
            return message
    return REFUSED


def _text(answer: RemoteAnswer, key: str) -> str | None:
    """A field of the object `error`, if it is a string."""
    value: Any = answer.error.get(key) if isinstance(answer.error, dict) else None
    return value if isinstance(value, str) else None
