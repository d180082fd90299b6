"""The dialect of Ollama's protocol as data. Source: Ollama's `docs/api.md`, `server/routes.go` and `api/types.go`."""

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
        max_top_logprobs: alternatives of each token.
        max_temperature: upper end of the interval of `temperature`; the lower end is 0.
        max_inputs: texts in one request for embeddings.
    """

    max_top_logprobs: int = 20
    max_temperature: float = 2.0
    max_inputs: int = 2048


class Answers(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of descriptions.

    Attributes:
        version: the version of Ollama whose protocol is spoken: clients ask for it, and refuse older ones.
    """

    version: str = "0.13.0"


class Wording(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Finish reasons and errors in the dialect's words.

    Attributes:
        done_reasons: our finish reason -> its `done_reason`.
        failures: `GatewayError.kind` -> the answer.
    """

    done_reasons: dict[str, str]
    failures: dict[str, Failure]


class Remote(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a remote server of the dialect is understood.

    Attributes:
        reasons: its `done_reason` -> our finish reason; any other word is a failure.
    """

    reasons: dict[str, FinishReason]


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of the protocol."""

    name: str
    requests: Requests = Requests()
    limits: Limits = Limits()
    answers: Answers = Answers()
    wording: Wording
    remote: Remote


_OLLAMA = Dialect(
    name="ollama",
    wording=Wording(
        # Ollama has two words: an answer with calls ends like any other, and so does a filtered one.
        done_reasons={
            "eos": "stop",
            "stop_string": "stop",
            "stop_token": "stop",
            "length": "length",
            "tool_call": "stop",
            "content_filter": "stop",
        },
        failures={
            "invalid_request": Failure(400),
            "malformed_body": Failure(400),
            "unsupported": Failure(400),
            "context_length": Failure(400),
            "unauthorized": Failure(401),
            "forbidden": Failure(403),
            "model_not_found": Failure(404),
            "route_not_found": Failure(404),
            "method_not_allowed": Failure(405),
            "conflict": Failure(409),
            "body_too_large": Failure(413),
            "unsupported_media_type": Failure(415),
            "request_timeout": Failure(408),
            "rate_limited": Failure(429),
            # What Ollama answers when its queue is full (`OLLAMA_MAX_QUEUE`).
            "overloaded": Failure(503),
            "shutting_down": Failure(503),
            "backend_failed": Failure(502),
            "backend_unavailable": Failure(503),
            "timeout": Failure(504),
            "incomplete": Failure(502),
            "internal": Failure(500),
        },
    ),
    remote=Remote(reasons={"stop": FinishReason.EOS, "length": FinishReason.LENGTH}),
)

DIALECTS = {"ollama": _OLLAMA}
