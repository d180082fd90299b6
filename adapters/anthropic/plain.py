"""Plain conversations, texts with a few parameters, decoded in one step."""

from __future__ import annotations

from typing import Literal

import msgspec

from adapters.anthropic.decode import read_given
from adapters.anthropic.dialects import Dialect
from adapters.base import Call
from adapters.body import read_plain
from adapters.unknown_fields import Unknown
from schemas import anthropic as wire
from schemas.ir import Generate, Origin

_NOTHING = Unknown({}, ())


class _Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: str


class _Metadata(wire.Metadata, frozen=True, forbid_unknown_fields=True):
    pass


class _Messages(wire.MessagesRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: tuple[_Turn, ...]  # type: ignore[assignment]
    system: str | None = None
    metadata: _Metadata | None = None
    tools: None = None
    tool_choice: None = None
    thinking: None = None
    output_config: None = None
    output_format: None = None
    cache_control: None = None
    mcp_servers: None = None
    container: None = None
    context_management: None = None
    inference_geo: None = None
    service_tier: None = None


_decode = msgspec.json.Decoder(_Messages).decode


def read_plain_messages(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Generate | None:
    """The request of a plain conversation, as `read_messages` reads it; None: that is to read or to refuse it.

    Raises:
        schemas.errors.RequestError: it breaks a rule of the protocol.
    """
    given = read_plain(_decode, body)
    # A last turn of the assistant is the beginning of the answer.
    if given is None or (given.messages and given.messages[-1].role == "assistant"):
        return None
    return read_given(dialect, given, _NOTHING, (), origin, call)
