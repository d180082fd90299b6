"""The headers that tell a client what is left of its limits, as OpenAI sends them.

Source: OpenAI's page "Rate limits", section "Rate limits in headers".
"""

from __future__ import annotations

from collections.abc import Sequence

from adapters.base import Headers
from schemas.quota import Quota


def openai_limit_headers(quotas: Sequence[Quota]) -> Headers:
    """`x-ratelimit-limit-requests`, `-remaining-` and `-reset-`, and the same for tokens."""
    return tuple(
        (f"x-ratelimit-{what}-{quota.kind}", value)
        for quota in quotas
        for what, value in (
            ("limit", str(quota.limit)),
            ("remaining", str(quota.remaining)),
            ("reset", _duration(quota.reset)),
        )
    )


def _duration(seconds: float) -> str:
    """As OpenAI writes durations: `120ms`, `1.5s`, `6m0s`, `1h2m3s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < 60:
        return f"{round(seconds, 3):g}s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}h{minutes}m{left}s" if hours else f"{minutes}m{left}s"
