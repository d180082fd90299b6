"""Forwarding of answers from a remote of the client's own dialect, with fields that this server does not know.

A remote is always asked for finish reason and token counts, so those that the client did not request are removed. An
answer that must repeat the prompt, or has the endpoint's own names of outputs, is not forwarded but encoded anew.
"""

from __future__ import annotations

import msgspec

from adapters.triton.dialects import Dialect
from adapters.triton.generate.request import outputs_of
from schemas.ir import Generate, Relayed

_REQUESTED = frozenset(("finish_reason", "num_input_tokens", "num_output_tokens", "logprobs"))


def passes_back(dialect: Dialect, request: Generate) -> bool:
    """Whether the remote's answer to `request` can be forwarded."""
    origin = request.origin
    # An echo is written by the server codec: the remote was asked without.
    if origin is None or (origin.protocol, origin.dialect) != ("triton", dialect.name) or request.echo:
        return False
    streams = origin.operation.startswith("generate_stream")
    same_form = request.stream == streams and not origin.operation.startswith("infer")
    return same_form and all(output.name == output.tensor for output in outputs_of(request))


def relayed(dialect: Dialect, request: Generate, data: bytes) -> Relayed:
    """A response as the client requested it."""
    # Members stay raw: what this server does not know passes through byte for byte.
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    unwanted = fields.keys() & _unwanted(dialect, request)
    for name in unwanted:
        del fields[name]
    return Relayed(msgspec.json.encode(fields) if unwanted else data)


def _unwanted(dialect: Dialect, request: Generate) -> set[str]:
    requested = {"details"} if dialect.answers.details else _REQUESTED
    wanted = {output.tensor for output in outputs_of(request)}
    if request.client_request_id or dialect.answers.always_id:
        return set(requested - wanted)
    # The client sent no id: the one in the answer is this gateway's.
    return {*requested, "id"} - wanted
