"""What a remote's errors mean. Its own words are passed on only where the client can mend the request.

Errors come in OpenAI's form, TGI's (`error` is the sentence), vLLM's and SGLang's (`message` and `code` at the top)
and Databricks' (`error_code` and `message`).
"""

from __future__ import annotations

from typing import Any

from adapters.base import Reply
from adapters.remote_failures import REFUSED, failure_of, read_error, retry_after
from schemas.errors import ContextLengthExceeded, GatewayError, InvalidRequest
from schemas.openai.remote import RemoteAnswer

_TOO_LONG = ("context_length_exceeded", "maximum context length", "max_model_len", "longer than the model's context")
_STATUS_OF_CODE = {
    "context_length_exceeded": 400,
    "rate_limit_exceeded": 429,
    "server_is_overloaded": 503,
    "model_not_found": 404,
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
"""What an error in a stream would have had for a status, where it only has a word."""


def is_error(answer: RemoteAnswer) -> bool:
    """Whether an answer, or an event of one, is an error."""
    return bool(answer.error) or answer.error_code is not None or answer.object == "error"


def event_failure(answer: RemoteAnswer) -> GatewayError:
    """What an error in a stream means, or in an answer of status 200."""
    error = answer.error if isinstance(answer.error, dict) else {}
    for code in (answer.code, error.get("code"), error.get("http_status_code"), answer.error_code, answer.error_type):
        status = _STATUS_OF_CODE.get(code) if isinstance(code, str) else code
        if isinstance(status, int) and 400 <= status < 600:
            return _failure(status, answer, None)
    return _failure(500, answer, None)


def remote_failure(reply: Reply) -> GatewayError:
    """What a reply with an error status means."""
    return _failure(reply.status, read_error(reply.body, RemoteAnswer), retry_after(reply.headers))


def _failure(status: int, answer: RemoteAnswer, retry_after: float | None) -> GatewayError:
    words = _words(answer)
    if status in (400, 422):
        param, code = _text(answer, "param"), _text(answer, "code")
        if any(sign in words or sign == code for sign in _TOO_LONG):
            return ContextLengthExceeded(words, param=param)
        return InvalidRequest(words, param=param, code=code)
    return failure_of(status, words, retry_after)


def _words(answer: RemoteAnswer) -> str:
    for words in (_text(answer, "message"), answer.error, answer.message):
        if isinstance(words, str) and words:
            return words
    return REFUSED


def _text(answer: RemoteAnswer, key: str) -> str | None:
    value: Any = answer.error.get(key) if isinstance(answer.error, dict) else None
    return value if isinstance(value, str) else None
