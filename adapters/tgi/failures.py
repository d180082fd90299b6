"""Errors as TGI's clients see them: as a response and in a stream."""

from __future__ import annotations

import math

import msgspec

from adapters.base import Headers, Reply
from adapters.dialect import row_for
from adapters.formats.sse import guard
from adapters.tgi.dialects import Dialect
from schemas.errors import GatewayError, MethodNotAllowed, UnsupportedFeature
from schemas.tgi import ErrorResponse

STREAM_TYPE = "text/event-stream"
STREAM_HEADERS: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))

_FIELDS = {
    "chat": "inputs",
    "token_prompts": "inputs",
    "images": "inputs",
    "grammar": "grammar",
    "logprobs": "details",
    "top_logprobs": "top_n_tokens",
    "prompt_logprobs": "decoder_input_details",
    "best_of": "best_of",
    "watermark": "watermark",
    "lora_adapters": "adapter_id",
}
"""The request field of a `backends.base.Feature`."""


def failure_frame(dialect: Dialect, error: GatewayError) -> bytes:
    """The error as a frame of a stream."""
    return b"%b%b\n\n" % (dialect.answers.sse_prefix.encode(), guard(_body(dialect, error)))


def failure_reply(dialect: Dialect, error: GatewayError, *, streamed: bool = False) -> Reply:
    """The error as a response.

    `streamed`: the request asked for a stream, which TGI itself answers with status 200 and one event.
    """
    if streamed and dialect.answers.stream_errors_as_frames:
        # `event: error` does not exist in TGI: clients look for the key `error` in the data.
        return Reply(failure_frame(dialect, error), media_type=STREAM_TYPE, headers=STREAM_HEADERS)
    failure = row_for(dialect.wording.failures, error)
    headers: Headers = ()
    if error.retry_after is not None:
        headers += (("retry-after", str(math.ceil(error.retry_after))),)
    if isinstance(error, MethodNotAllowed) and error.allowed:
        headers += (("allow", ", ".join(error.allowed)),)
    # A failure without a type has an empty body (TGI's 401).
    return Reply(_body(dialect, error) if failure.type else b"", failure.status, headers=headers)


def _body(dialect: Dialect, error: GatewayError) -> bytes:
    failure = row_for(dialect.wording.failures, error)
    message = failure.text.format(message=_message(dialect, error))
    return msgspec.json.encode(ErrorResponse(message, failure.type or error.kind))


def _message(dialect: Dialect, error: GatewayError) -> str:
    if isinstance(error, UnsupportedFeature) and error.feature in _FIELDS:
        return dialect.wording.unsupported.format(field=_FIELDS[error.feature])
    return error.message
