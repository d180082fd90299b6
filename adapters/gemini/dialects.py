"""The dialect of the Gemini API as data. Source: the API reference, and its page "Troubleshooting" for errors."""

from __future__ import annotations

import msgspec

from adapters.dialect import Failure, Group
from schemas.ir import FinishReason


class Requests(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which fields a request may have.

    Attributes:
        strict: whether fields without effect are refused.
    """

    strict: bool = False


class Limits(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Intervals and counts.

    Attributes:
        max_candidates: answers to one request.
        max_logprobs: alternatives of each token.
        max_stops: stop sequences in one request.
        max_temperature: upper end of the interval of `temperature`; the lower end is 0.
        max_inputs: texts in one batch of embeddings.
    """

    max_candidates: int = 8
    max_logprobs: int = 20
    max_stops: int = 5
    max_temperature: float = 2.0
    max_inputs: int = 2048


class Wording(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Finish reasons and errors in the dialect's words.

    Attributes:
        finish_reasons: our finish reason -> its `finishReason`.
        failures: `GatewayError.kind` -> the answer, whose `type` is its `status`.
    """

    finish_reasons: dict[str, str]
    failures: dict[str, Failure]


class Remote(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a remote server of the dialect is understood.

    Attributes:
        reasons: its `finishReason` -> our finish reason; any other word is a failure.
    """

    reasons: dict[str, FinishReason]


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of the protocol."""

    name: str
    requests: Requests = Requests()
    limits: Limits = Limits()
    wording: Wording
    remote: Remote


_INVALID = "INVALID_ARGUMENT"

_GEMINI = Dialect(
    name="gemini",
    wording=Wording(
        finish_reasons={
            "eos": "STOP",
            "stop_string": "STOP",
            "stop_token": "STOP",
            "length": "MAX_TOKENS",
            "tool_call": "STOP",
            "content_filter": "SAFETY",
        },
        failures={
            "invalid_request": Failure(400, _INVALID),
            "malformed_body": Failure(400, _INVALID),
            "unsupported": Failure(400, _INVALID),
            "context_length": Failure(400, _INVALID),
            "unauthorized": Failure(401, "UNAUTHENTICATED"),
            "forbidden": Failure(403, "PERMISSION_DENIED"),
            "model_not_found": Failure(404, "NOT_FOUND"),
            "route_not_found": Failure(404, "NOT_FOUND"),
            "method_not_allowed": Failure(405, "UNIMPLEMENTED"),
            "conflict": Failure(409, "ABORTED"),
            "body_too_large": Failure(413, _INVALID),
            "unsupported_media_type": Failure(415, _INVALID),
            "request_timeout": Failure(408, "DEADLINE_EXCEEDED"),
            "rate_limited": Failure(429, "RESOURCE_EXHAUSTED"),
            "overloaded": Failure(503, "UNAVAILABLE"),
            "shutting_down": Failure(503, "UNAVAILABLE"),
            "backend_failed": Failure(502, "INTERNAL"),
            "backend_unavailable": Failure(503, "UNAVAILABLE"),
            "timeout": Failure(504, "DEADLINE_EXCEEDED"),
            "incomplete": Failure(502, "INTERNAL"),
            "internal": Failure(500, "INTERNAL"),
        },
    ),
    remote=Remote(
        reasons={"STOP": FinishReason.EOS, "MAX_TOKENS": FinishReason.LENGTH}
        | dict.fromkeys(
            ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "OTHER"),
            FinishReason.CONTENT_FILTER,
        )
    ),
)

DIALECTS = {"gemini": _GEMINI}
