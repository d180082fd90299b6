"""The dialect of Cohere's API as data. Source: Cohere's OpenAPI document."""

from __future__ import annotations

import msgspec

from schemas.ir import FinishReason


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of the protocol.

    Attributes:
        reasons: its `finish_reason` -> our finish reason; any other word is a failure.
        max_temperature: upper end of the interval of `temperature`; the lower end is 0.
        max_penalty: likewise of `frequency_penalty` and `presence_penalty`.
        max_k: likewise of `k`.
        top_p: both ends of the interval of `p`.
    """

    name: str
    reasons: dict[str, FinishReason]
    max_temperature: float = 1.0
    max_penalty: float = 1.0
    max_k: int = 500
    top_p: tuple[float, float] = (0.01, 0.99)


_COHERE = Dialect(
    name="cohere",
    reasons={
        "COMPLETE": FinishReason.EOS,
        "STOP_SEQUENCE": FinishReason.STOP_STRING,
        "MAX_TOKENS": FinishReason.LENGTH,
        "TOOL_CALL": FinishReason.TOOL_CALL,
    },
)

DIALECTS = {"cohere": _COHERE}
