"""What a remote of the client's own dialect said, passed on: fields that nobody here knows included.

A remote is always asked how an answer ended and what it counted, so what the client did not ask for is taken out. An
answer that must repeat the prompt, or that names its outputs in words of the endpoint's own, is written anew instead.
"""

from __future__ import annotations

import msgspec

from adapters.triton.dialects import Dialect
from adapters.triton.generate.request import outputs_of
from schemas.ir import Generate, Relayed

_ASKED = frozenset(("finish_reason", "num_input_tokens", "num_output_tokens", "logprobs"))


def passes_back(dialect: Dialect, request: Generate) -> bool:
    """Whether what the remote answers can be passed on."""
    origin = request.origin
    if origin is None or (origin.protocol, origin.dialect) != ("triton", dialect.name) or request.echo:
        return False
    streams = origin.operation.startswith("generate_stream")
    same_form = request.stream == streams and not origin.operation.startswith("infer")
    return same_form and all(output.name == output.tensor for output in outputs_of(request))


def relayed(dialect: Dialect, request: Generate, data: bytes) -> Relayed:
    """A response as the client wants it."""
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    unasked = fields.keys() & _unasked(dialect, request)
    for name in unasked:
        del fields[name]
    return Relayed(msgspec.json.encode(fields) if unasked else data)


def _unasked(dialect: Dialect, request: Generate) -> set[str]:
    asked = {"details"} if dialect.answers.details else _ASKED
    wanted = {output.tensor for output in outputs_of(request)}
    if request.hints.get("details"):
        wanted.add("details")
    if request.client_request_id or dialect.answers.always_id:
        return set(asked - wanted)
    return {*asked, "id"} - wanted
