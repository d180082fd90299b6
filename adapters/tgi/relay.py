"""Forwarding of answers from a remote of the client's own dialect, with fields that this server does not know.

A remote is always asked for details, and never for the prompt. So details that the client did not request are removed;
an answer that must repeat the prompt is not forwarded but encoded anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from schemas.ir import Generate, Relayed

if TYPE_CHECKING:
    from adapters.tgi.dialects import Dialect


def passes_back(dialect: Dialect, request: Generate) -> bool:
    """Whether the remote's answer to `request` can be forwarded."""
    origin = request.origin
    return origin is not None and (origin.protocol, origin.dialect) == ("tgi", dialect.name) and not request.echo


def relayed(request: Generate, data: bytes, *, detailed: bool) -> Relayed:
    """An answer, or a frame of one, as the client requested it; `detailed`: whether it has details."""
    # The bytes as they came: nothing to decode.
    if not detailed or request.stream_usage:
        return Relayed(data)
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    fields.pop("details")
    return Relayed(msgspec.json.encode(fields))
