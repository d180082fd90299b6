"""The headers that tell a client what is left of its limits, as OpenAI sends them.

Source: OpenAI's page "Rate limits", section "Rate limits in headers".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from adapters.base import RawHeaders
from schemas.errors import Quota


def openai_limit_headers(quotas: Sequence[Quota]) -> RawHeaders:
    """`x-ratelimit-limit-requests`, `-remaining-` and `-reset-`, and the same for tokens."""
    headers: RawHeaders = []
    for quota in quotas:
        limit, reset = _fixed(quota.kind, quota.limit, quota.reset)
        headers += (limit, (_REMAINING[quota.kind], b"%d" % quota.remaining), reset)
    return headers


_REMAINING = {kind: b"x-ratelimit-remaining-" + kind.encode() for kind in ("requests", "tokens")}


@lru_cache
def _fixed(kind: str, limit: int, reset: int) -> RawHeaders:
    """The headers that all answers of a second have in common."""
    return [
        (f"x-ratelimit-limit-{kind}".encode(), b"%d" % limit),
        (f"x-ratelimit-reset-{kind}".encode(), _duration(reset).encode()),
    ]


def _duration(seconds: int) -> str:
    """As OpenAI writes durations: `1s`, `6m0s`, `1h2m3s`."""
    hours, rest = divmod(seconds, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{left}s"
    return f"{minutes}m{left}s" if minutes else f"{left}s"
