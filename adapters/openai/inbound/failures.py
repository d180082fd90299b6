"""Errors in the protocol's words. Replies and stream events have the same JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec

from adapters.base import Headers, Reply
from adapters.dialect import row_for
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.extensions import constraining_field
from schemas.errors import GatewayError, InvalidRequest, MethodNotAllowed, UnsupportedFeature
from schemas.ir import ChatPrompt, Generate, ImagePart, Part
from schemas.openai.answers import Error, ErrorResponse, MindieErrorResponse

_FIELDS = {
    "chat": "messages",
    "token_prompts": "prompt",
    "images": "messages",
    "tools": "tools",
    "grammar": "response_format",
    "logprobs": "logprobs",
    "top_logprobs": "top_logprobs",
    "prompt_logprobs": "echo",
    "logit_bias": "logit_bias",
    "min_p": "min_p",
    "bad_words": "bad_words",
    "template_options": "chat_template_kwargs",
    "best_of": "best_of",
    "suffix": "suffix",
    "lora_adapters": "model",
    "truncation": "truncation",
}
"""A `backends.base.Feature` -> the field of the protocol that asks for it."""

_OTHER_NAMES = {
    # The number of alternatives is the value of `logprobs`.
    "completions": {"top_logprobs": "logprobs"},
    "responses": {"messages": "input", "logprobs": "include", "response_format": "text.format"},
}
"""An operation -> a field of chats -> the field by which the operation asks for the same."""

_IMAGE = re.compile(r"images(?:\[(\d+)\])?")
"""The `param` with which backends name the images of a request, or one of them by its number."""


def error_reply(dialect: Dialect, error: GatewayError, request: Generate | None = None) -> Reply:
    """The reply to an error; `request` is the request, if it could be decoded."""
    status = row_for(dialect.wording.failures, error).status
    return Reply(error_body(dialect, error, request), status, headers=error_headers(dialect, error))


def error_body(dialect: Dialect, error: GatewayError, request: Generate | None = None) -> bytes:
    """The JSON of an error."""
    if dialect.wording.error_body == "mindie":
        failure = row_for(dialect.wording.failures, error)
        return msgspec.json.encode(MindieErrorResponse(failure.text.format(message=error.message), failure.type))
    return msgspec.json.encode(ErrorResponse(wire_error(dialect, error, request)))


def wire_error(dialect: Dialect, error: GatewayError, request: Generate | None = None) -> Error:
    """An error in OpenAI's form, with all four keys."""
    failure = row_for(dialect.wording.failures, error)
    message = failure.text.format(message=error.message)
    written = error.failed_generation if isinstance(error, InvalidRequest) else None
    return Error(message, failure.type, _param(error, request), error.code or failure.code, written)


def error_headers(dialect: Dialect, error: GatewayError) -> Headers:
    """The headers that say when to retry, and whether at all: the official SDKs retry every 5xx twice by default."""
    headers: Headers = ()
    if error.retry_after is not None:
        headers += (
            # Both: the SDKs prefer `retry-after-ms`; RFC 9110 section 10.2.3 allows whole seconds only, rounded up.
            ("retry-after", str(math.ceil(error.retry_after))),
            ("retry-after-ms", str(math.ceil(error.retry_after * 1000))),
        )
    # `x-should-retry` is what OpenAI's own servers send to overrule the SDKs' rules. A time to retry rules it out.
    elif row_for(dialect.wording.failures, error).final:
        headers += (("x-should-retry", "false"),)
    if isinstance(error, MethodNotAllowed) and error.allowed:
        headers += (("allow", ", ".join(error.allowed)),)
    return headers


def _param(error: GatewayError, request: Generate | None) -> str | None:
    """The field that is at fault, where it is known."""
    # Backends number images over the whole request; the client wants the path of the part.
    if (image := _IMAGE.fullmatch(error.param or "")) is not None:
        return None if request is None else _image_param(request, image[1])
    field = error.param
    if field is None and isinstance(error, UnsupportedFeature):
        field = _FIELDS.get(error.feature)
    elif field is None and error.kind == "context_length" and request is not None:
        field = "messages" if isinstance(request.prompts[0], ChatPrompt) else "prompt"
    elif field is None and error.kind == "model_not_found":
        field = "model"
    origin = request.origin if request is not None else None
    if field is None or origin is None:
        return field
    if field == "response_format" and origin.operation in ("chat", "completions"):
        return constraining_field(origin.body)
    return _OTHER_NAMES.get(origin.operation, {}).get(field, field)


def _image_param(request: Generate, number: str | None) -> str:
    """The field of a chat's image `number`, or of its images. The items of a response are not distinguished."""
    if request.origin is not None and request.origin.operation != "chat":
        return "input"
    if number is None:
        return "messages"
    messages = [message for prompt in request.prompts if isinstance(prompt, ChatPrompt) for message in prompt.messages]
    places = [
        f"messages[{turn}].content{place}"
        for turn, message in enumerate(messages)
        if isinstance(message.content, tuple)
        for place in _image_places(message.content)
    ]
    # The backend numbered the parts of this same request, in the same order.
    return places[int(number)]


def _image_places(content: tuple[Part, ...]) -> Iterator[str]:
    """The place of each image in the client's content, where all frames of a video are one part."""
    place = -1
    for part in content:
        frame = part.frame if isinstance(part, ImagePart) else None
        # The first frame is numbered 0.
        place += not frame
        if isinstance(part, ImagePart):
            field = "image_embeds" if part.kind == "embeddings" else "image_url" if frame is None else "video_url"
            yield f"[{place}].{field}"
