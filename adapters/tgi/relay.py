"""What a remote of the client's own dialect said, passed on: fields that nobody here knows included.

A remote is always asked for details, whatever the client wanted, and never for the prompt. So details may have to go;
an answer that must repeat the prompt is written anew instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from schemas.ir import Generate, Relayed

if TYPE_CHECKING:
    from adapters.tgi.dialects import Dialect


def passes_back(dialect: Dialect, request: Generate) -> bool:
    """Whether what the remote answers can be passed on."""
    origin = request.origin
    return origin is not None and (origin.protocol, origin.dialect) == ("tgi", dialect.name) and not request.echo


def relayed(request: Generate, data: bytes, *, detailed: bool) -> Relayed:
    """An answer, or a frame of one, as the client wants it; `detailed` says whether it holds details."""
    if not detailed or request.stream_usage:
        return Relayed(data)
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    fields.pop("details")
    return Relayed(msgspec.json.encode(fields))
