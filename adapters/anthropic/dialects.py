"""The dialect of Anthropic's Messages protocol as data. Source: the API reference, "Messages" and "Errors"."""

from __future__ import annotations

import msgspec

from adapters.dialect import Failure, Group
from schemas.ir import FinishReason


class Requests(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which fields a request may have.

    Attributes:
        strict: whether unknown fields are refused.
    """

    strict: bool = False


class Limits(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Intervals and counts.

    Attributes:
        max_temperature: upper end of the interval of `temperature`; the lower end is 0.
        max_stops: stop sequences in one request.
        max_tools: tools in one request.
    """

    max_temperature: float = 1.0
    max_stops: int = 8192
    max_tools: int = 128


class Wording(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Finish reasons and errors in the dialect's words.

    Attributes:
        stop_reasons: our finish reason -> its `stop_reason`.
        failures: `GatewayError.kind` -> the answer.
        unsupported: feature (`UnsupportedFeature`) -> the message for those that the protocol has words for.
    """

    stop_reasons: dict[str, str]
    failures: dict[str, Failure]
    unsupported: dict[str, str]


class Remote(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a remote server of the dialect is understood.

    Attributes:
        reasons: its `stop_reason` -> our finish reason; any other word is a failure.
    """

    reasons: dict[str, FinishReason]


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of the protocol."""

    name: str
    requests: Requests = Requests()
    limits: Limits = Limits()
    wording: Wording
    remote: Remote


_INVALID = "invalid_request_error"
_API = "api_error"

_ANTHROPIC = Dialect(
    name="anthropic",
    wording=Wording(
        stop_reasons={
            "eos": "end_turn",
            "stop_string": "stop_sequence",
            "stop_token": "end_turn",
            "length": "max_tokens",
            "tool_call": "tool_use",
            "content_filter": "refusal",
        },
        failures={
            "invalid_request": Failure(400, _INVALID),
            "malformed_body": Failure(400, _INVALID),
            "unsupported": Failure(400, _INVALID),
            "context_length": Failure(400, _INVALID),
            "unauthorized": Failure(401, "authentication_error"),
            "forbidden": Failure(403, "permission_error"),
            "model_not_found": Failure(404, "not_found_error"),
            "route_not_found": Failure(404, "not_found_error"),
            "method_not_allowed": Failure(405, _INVALID),
            "conflict": Failure(409, _INVALID),
            "body_too_large": Failure(413, "request_too_large"),
            "unsupported_media_type": Failure(415, _INVALID),
            "request_timeout": Failure(408, _INVALID),
            "rate_limited": Failure(429, "rate_limit_error"),
            # 529 is no registered status; Anthropic's page "Errors" has it for "overloaded_error", and SDKs retry it.
            "overloaded": Failure(529, "overloaded_error"),
            "shutting_down": Failure(529, "overloaded_error"),
            "backend_failed": Failure(502, _API),
            "backend_unavailable": Failure(503, _API),
            "timeout": Failure(504, "timeout_error"),
            "incomplete": Failure(502, _API),
            "internal": Failure(500, _API),
        },
        unsupported={
            # A last turn of the assistant. The words are those of Anthropic's newer models, which refuse it, too.
            "template_options": "This model does not support assistant message prefill. "
            "The conversation must end with a user message."
        },
    ),
    remote=Remote(
        reasons={
            "end_turn": FinishReason.EOS,
            # A server tool's turn was interrupted. Only clients of the protocol have those, and see the word.
            "pause_turn": FinishReason.EOS,
            # The conversation was summarized (`context_management`); only clients of the protocol ask for it.
            "compaction": FinishReason.EOS,
            "stop_sequence": FinishReason.STOP_STRING,
            "max_tokens": FinishReason.LENGTH,
            "model_context_window_exceeded": FinishReason.LENGTH,
            "tool_use": FinishReason.TOOL_CALL,
            # Streaming classifiers stopped the answer.
            "refusal": FinishReason.CONTENT_FILTER,
        }
    ),
)

DIALECTS = {"anthropic": _ANTHROPIC}
