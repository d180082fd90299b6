"""Where a request came from, and requests that are relayed to a remote as they came."""

from __future__ import annotations

from typing import Literal

import msgspec

Scoring = Literal["rerank", "score", "classify", "sparse", "tokens"]
"""An operation that models here may do, too: score documents for a query, score pairs of texts, classify texts, make
sparse vectors of texts, make a vector of each token of texts."""


class Origin(msgspec.Struct, frozen=True):
    """Where a request came from. A remote of the same protocol is sent its body. `operation`: a `Route.name`.

    `headers` are those that such a remote is sent, too. `media_type` is the body's, with its parameters. `items`: the
    JSON of the conversation where the body refers to a part of it that is stored here; a remote is sent all of it.
    """

    protocol: str
    dialect: str
    operation: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    media_type: str = "application/json"
    items: bytes = b""


class Unread(msgspec.Struct, frozen=True):
    """A part of a body that the IR cannot express: only a remote that is sent the body can answer the request.

    `param` is its place, `feature` its name, `refusal` the error message where no such remote answers, with its `code`.
    """

    param: str
    feature: str
    refusal: str
    code: str | None = None


class Relay(msgspec.Struct, frozen=True, kw_only=True):
    """A request for an operation that is not of the IR: a remote of the same dialect is sent its body.

    `id`, `model`, `flow` and `destinations` are as in `schemas.ir.Generate`. `scoring`: what a model here that can do
    it reads from the body. `by_text`: a model can do it by writing a text, if no remote does it.
    """

    id: str
    model: str
    origin: Origin
    flow: str = ""
    destinations: tuple[str, ...] = ()
    scoring: Scoring | None = None
    by_text: bool = False


class RelayedAnswer(msgspec.Struct, frozen=True):
    """A remote's whole answer to a `Relay`, sent to the client as it is. `media_type` has its parameters."""

    body: bytes
    media_type: str
