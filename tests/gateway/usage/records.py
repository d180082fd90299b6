"""Records for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.usage.record import Record

RECORD = Record(
    request_id="r",
    time_ms=1_700_000_000_000,
    key="team",
    key_id="0123456789abcdef",
    endpoint="chat",
    served_entity="chat-1",
    model="small",
    protocol="openai",
    route="chat",
    kind="generate",
    user=None,
    streamed=False,
    cache_hit=None,
    prompt_tokens=10,
    cached_tokens=None,
    completion_tokens=5,
    reasoning_tokens=None,
    cost=4500,
    duration=0.25,
    time_to_first_token=None,
    status=200,
    outcome="ok",
    stage=None,
    finish_reasons="eos",
)


def record(number: int = 0, **changes: Any) -> Record:
    """A record of its own second."""
    made = msgspec.structs.replace(RECORD, request_id=f"r{number}", time_ms=RECORD.time_ms + 1000 * number)
    return msgspec.structs.replace(made, **changes)
