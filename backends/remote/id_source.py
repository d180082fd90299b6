"""Where the token ids of a remote's answer come from, and the mark of that in the answer's first event."""

from __future__ import annotations

from typing import get_args

import msgspec

from adapters.base import TOKEN_IDS, ClientCodec, RawHeaders
from schemas.ir import Events, Generate, Started, TokenIds

# "model" is left out: a gateway sends the header only for ids that may not be the model's (`token_id_headers`).
_MARKS: dict[str, TokenIds] = {mark: mark for mark in get_args(TokenIds) if mark != "model"}
"""What an upstream gateway of this project may say of its token ids in the header `TOKEN_IDS`."""
_NAME = TOKEN_IDS.encode()


def id_source(mark: str, *, from_server: bool, retokenised: bool) -> TokenIds:
    """The source of an answer's token ids.

    Args:
        mark: the answer's header `TOKEN_IDS`; "" without one. A gateway like this one marks its own answers.
        from_server: whether the server has returned them.
        retokenised: whether a tokenizer has filled in others.
    """
    # An unknown value is ignored: other software may send a header of this name.
    if known := _MARKS.get(mark):
        return known
    if from_server:
        return "model"
    return "retokenised" if retokenised else "synthetic"


def ids_of(codec: ClientCodec, request: Generate, headers: RawHeaders) -> TokenIds:
    """The same of the answer to a request, by all its headers, where no tokenizer fills in others."""
    from_server = codec.returns_token_ids(request)
    for name, value in headers:
        if name == _NAME:
            return id_source(value.decode("latin-1"), from_server=from_server, retokenised=False)
    return "model" if from_server else "synthetic"


def marked(events: Events, ids: TokenIds) -> Events:
    """Write where the answer's token ids come from into the `Started` of its first events."""
    if ids == "model":
        return events
    place = 0
    while type(started := events[place]) is not Started:  # `Relayed` may precede it
        place += 1
    return (*events[:place], msgspec.structs.replace(started, token_ids=ids), *events[place + 1 :])
