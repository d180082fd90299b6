"""Scripts: what a scripted model answers and which faults it injects, and the model names that select them.

A model name is a row of `SCRIPTS`, or a fault: `overloaded`, `timeout-before` and `hang` come before the first event,
`error-after-3`, `hang-after-2` and `truncate-after-2` after that many tokens. Any other name gives the plain answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from schemas import errors
from schemas.errors import GatewayError
from schemas.ir import FinishReason

ERRORS: dict[str, Callable[[str], Exception]] = {
    "error": errors.BackendFailed,
    "backend-failed": errors.BackendFailed,
    "backend-unavailable": errors.BackendUnavailable,
    "timeout": errors.BackendTimeout,
    "incomplete": errors.Incomplete,
    "overloaded": lambda message: errors.Overloaded(message, retry_after=1.0),
    "shutting-down": lambda message: errors.ShuttingDown(message, retry_after=5.0),
    "rate-limited": lambda message: errors.RateLimited(message, retry_after=2.0),
    "invalid-request": lambda message: errors.InvalidRequest(message, param="prompt"),
    "malformed-body": errors.MalformedBody,
    "unsupported": lambda message: errors.UnsupportedFeature(message, feature="tools"),
    "context-length": errors.ContextLengthExceeded,
    "unauthorized": errors.Unauthorized,
    "forbidden": errors.Forbidden,
    "conflict": errors.Conflict,
    "model-not-found": errors.ModelNotFound,
    "route-not-found": errors.RouteNotFound,
    "method-not-allowed": errors.MethodNotAllowed,
    "body-too-large": errors.BodyTooLarge,
    "unsupported-media-type": errors.UnsupportedMediaType,
    "request-timeout": errors.RequestTimeout,
    "internal-error": lambda _: errors.InternalError(),
    "gateway-error": GatewayError,
    "crash": RuntimeError,
}
"""Faults that raise: one name at least for every kind of error, and `crash` for an unexpected exception."""

HANG, TRUNCATE = "hang", "truncate"
"""Faults that do not raise: an answer that never continues, and one that ends without `Finished` and `Usage`."""


class InjectedFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault, and after how many tokens of the answer it comes; None: before the first event."""

    what: str
    after: int | None = None

    def __post_init__(self) -> None:
        if self.what not in (*ERRORS, HANG, TRUNCATE):
            raise ValueError(f"unknown fault '{self.what}'; known are {', '.join((*ERRORS, HANG, TRUNCATE))}")

    def error(self) -> Exception:
        """The exception of a fault that raises."""
        return ERRORS[self.what](f"The scripted backend was configured to fail: {self.what}.")


class FixedToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token of the answer, sent as it is."""

    id: int
    text: str
    logprob: float | None = None
    special: bool = False


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a model answers.

    Attributes:
        texts: the answers; greedy requests get the first, sampled ones a text by their seed.
        echo: answer with the last message or the prompt instead.
        tokens: answer with these tokens instead.
        repeat: how often the answer is repeated.
        reasoning: reasoning text before the answer.
        refusal: a refusal instead of an answer.
        tool_calls: how many of the request's tools to call instead of answering.
        reason: the finish reason, if neither a limit nor a stop string ends the answer earlier.
        delay: seconds before the first event.
        interval: seconds between batches.
        burst: tokens of each choice in a batch.
        fault: a fault to inject.
    """

    texts: tuple[str, ...] = (
        "The quick brown fox jumps over the lazy dog.",
        "Hello world, this is an answer from the scripted backend.",
        "One, two, three, four, five, six, seven, eight, nine, ten.",
        "It says the same thing every time.",
    )
    echo: bool = False
    tokens: tuple[FixedToken, ...] = ()
    repeat: int = 1
    reasoning: str = ""
    refusal: str = ""
    tool_calls: int = 0
    reason: FinishReason = FinishReason.EOS
    delay: float = 0.0
    interval: float = 0.0
    burst: int = 1
    fault: InjectedFault | None = None


SCRIPTS: dict[str, Script] = {
    "scripted": Script(),
    "echo": Script(echo=True),
    "empty": Script(texts=("",)),
    "many": Script(repeat=100),
    "burst": Script(repeat=4, burst=8),
    "slow": Script(interval=0.05),
    "late": Script(delay=0.5),
    "unicode": Script(texts=('Grüße aus 東京! 👩‍🚀 says: 🙂\u2028next\x85\ttab "quoted" \\ </s> \ufffd end',)),
    "reasoning": Script(reasoning="Let me think about that first."),
    "refusal": Script(refusal="I am sorry, but I can not help with that."),
    "content-filter": Script(reason=FinishReason.CONTENT_FILTER),
    "tool-call": Script(tool_calls=1),
    "tool-calls": Script(tool_calls=2),
}

# The name is matched lazily, so that "-before" and "-after-N" are not taken for parts of it.
_FAULT_NAME = re.compile(r"(?P<what>[a-z-]+?)(-before|-after-(?P<after>\d{1,6}))?")


def script_for(model: str) -> Script:
    """The script that a model's name selects."""
    if model in SCRIPTS:
        return SCRIPTS[model]
    name = _FAULT_NAME.fullmatch(model)
    if name is None or name["what"] not in (*ERRORS, HANG, TRUNCATE):
        return SCRIPTS["scripted"]
    return Script(fault=InjectedFault(name["what"], int(name["after"]) if name["after"] else None))
