"""The configuration of a remote backend."""

from __future__ import annotations

import msgspec

from backends.base import Feature
from backends.transport import TransportLimits, split_url


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds. A stream has no limit in all.

    Attributes:
        connect: for a connection, TLS included.
        first_token: from the request to a stream's first event, retries included.
        idle: between two events of a stream. Bytes that complete no event do not count.
        whole: for an answer that is not streamed, which comes only once it is generated.
    """

    connect: float = 2.0
    first_token: float = 60.0
    idle: float = 30.0
    whole: float = 600.0


class Retries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a request that was not answered is sent again.

    Attributes:
        attempts: of one request, the first included.
        budget: at most so many retries per request, over all requests of late.
        base: seconds; the n-th pause is drawn from 0 to `base * 2^n`.
        cap: the longest pause.
    """

    attempts: int = 3
    budget: float = 0.1
    base: float = 0.05
    cap: float = 1.0


class RemoteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Configuration.

    Attributes:
        url: the server's base; for the OpenAI kinds it ends in `/v1`.
        api_key_env: the environment variable that holds its key.
        key_header: where the key goes, instead of `authorization: Bearer` (Azure: `api-key`).
        headers: more headers, sent with every request. No secrets: this file is not a place for them.
        models: our names -> its names, where they differ and no served entity says so.
        timeouts: how long to wait.
        limits: what connections may cost, and how many requests may run.
        retries: when to ask again.
        failures: so many in a row, and other backends are preferred to this one until it answers again.
        health_interval: seconds between two looks at its health.
        ca_file: certificates to trust instead of the system's.
        features: what its models can do, if less than its protocol can say.
        context_length: tokens of prompt and answer together, for listings.
        tokenizer: its `tokenizer.json`, or the folder of it; for token ids where the server tells none, and to
            tokenize texts. Without it, protocols whose tokens must have an id say 0, and a header marks it.
    """

    url: str
    api_key_env: str | None = None
    key_header: str | None = None
    headers: dict[str, str] = {}
    models: dict[str, str] = {}
    timeouts: Timeouts = Timeouts()
    limits: TransportLimits = TransportLimits()
    retries: Retries = Retries()
    failures: int = 5
    health_interval: float = 5.0
    ca_file: str | None = None
    features: frozenset[Feature] | None = None
    context_length: int | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        split_url(self.url)
