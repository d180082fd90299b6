"""The record of one request, which log lines, usage and exports are made of."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec

MOST_TEXT = 1 << 16
"""Characters that a record keeps of a request and of an answer."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One request.

    Attributes:
        request_id: the answer's `x-request-id`.
        time_ms: when the request came; Unix time in milliseconds.
        key: the name of the key that asked; null if no key was needed.
        key_id: the first 16 hexadecimal digits of the key's SHA-256: a new key of the same name has another one.
        endpoint: what was asked; the name that the client gave if it leads to none.
        served_entity: who was asked last; null if nobody was.
        model: the name of that served entity's model at its backend.
        protocol: of the client.
        route: the protocol's name of the operation.
        kind: what it asked for: "generate", "embed", "tokenize" or "relay".
        user: the user that the request names, as the configuration keeps it.
        streamed: whether the client asked for a stream.
        cache_hit: whether the answer came out of the endpoint's cache, and cost nothing; null: it was not looked for.
        prompt_tokens: null, like the other numbers of tokens, if the answer did not end.
        cached_tokens: those of the prompt that were in the model's cache; null if that is not known.
        completion_tokens: of the answer.
        reasoning_tokens: those of the answer that were reasoning; null if that is not known.
        cost: of the answer, in billionths of the prices' currency.
        duration: seconds until the end of the answer.
        time_to_first_token: seconds, of a stream; null if it is not known.
        status: the HTTP status; 499 if the client left before there was one.
        outcome: "ok", "client_gone", "cancelled", or an error's kind.
        stage: where the request was cut; null if it was not.
        finish_reasons: of the choices that finished, separated by commas.
        input: the client's body; null unless texts are kept.
        output: the text of the answer's choices; likewise.
    """

    request_id: str
    time_ms: int
    key: str | None
    key_id: str | None
    endpoint: str | None
    served_entity: str | None
    model: str | None
    protocol: str
    route: str
    kind: str
    user: str | None
    streamed: bool
    cache_hit: bool | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    cost: int
    duration: float
    time_to_first_token: float | None
    status: int
    outcome: str
    stage: str | None
    finish_reasons: str
    input: str | None = None
    output: str | None = None


COLUMNS = tuple(field.name for field in msgspec.structs.fields(Record))
"""The names of its fields, in order."""


@lru_cache(maxsize=4096)
def hashed(user: str) -> str:
    """The first 16 hexadecimal digits of a user's SHA-256: the same for the same user, and shorter than its name."""
    return hashlib.sha256(user.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def storable(text: str) -> str:
    """A client's text as every database can keep it: PostgreSQL has no NUL, and lone surrogates are no UTF-8."""
    return text[:MOST_TEXT].replace("\0", "\ufffd").encode(errors="replace").decode()
