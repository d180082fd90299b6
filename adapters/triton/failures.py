"""Errors as Triton's clients see them: `{"error": "…"}`, with `error_type` in MindIE's dialect."""

from __future__ import annotations

import math

import msgspec

from adapters.base import JSON, Headers, Reply
from adapters.dialect import row_for
from adapters.triton.dialects import Dialect
from schemas.errors import GatewayError, MethodNotAllowed, UnsupportedFeature
from schemas.triton import ErrorBody

# Triton's own messages, which replace those of the error.
_FIXED = {"route_not_found": "Not Found", "method_not_allowed": "Method Not Allowed"}

# Feature -> the parameter or input that requests it.
_PARAMETERS = {
    "images": "image",
    "grammar": "structured_outputs",
    "logprobs": "return_logprobs",
    "top_logprobs": "logprobs",
    "prompt_logprobs": "prompt_logprobs",
    "logit_bias": "logit_bias",
    "min_p": "min_p",
    "bad_words": "bad_words",
    "best_of": "best_of",
    "watermark": "watermark",
    "lora_adapters": "lora_name",
}


def reply(error: GatewayError, dialect: Dialect) -> Reply:
    """The error as a response."""
    return Reply(body(error, dialect), row_for(dialect.wording.statuses, error), JSON, _headers(error))


def body(error: GatewayError, dialect: Dialect) -> bytes:
    """The JSON of an error."""
    status = row_for(dialect.wording.statuses, error)
    type = dialect.wording.error_types.get(status, msgspec.UNSET)
    return msgspec.json.encode(ErrorBody(message(error), type))


def message(error: GatewayError) -> str:
    """What is wrong, in Triton's words where it has some."""
    if isinstance(error, UnsupportedFeature):
        name = error.param or _PARAMETERS.get(error.feature, error.feature)
        return f"parameter '{name}' is not supported: {error.message}"
    return _FIXED.get(error.kind, error.message)


def _headers(error: GatewayError) -> Headers:
    headers: list[tuple[str, str]] = []
    if error.retry_after is not None:
        # Whole seconds, rounded up (RFC 9110 section 10.2.3).
        headers.append(("Retry-After", str(math.ceil(error.retry_after))))
    if isinstance(error, MethodNotAllowed) and error.allowed:
        headers.append(("Allow", ", ".join(error.allowed)))
    return tuple(headers)
