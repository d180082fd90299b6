"""The configuration of a remote backend."""

from __future__ import annotations

import os
import ssl
from typing import Literal

import msgspec

from adapters.base import Headers
from backends.base import Feature
from backends.transport import Transport, TransportLimits, split_url


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Timeouts in seconds. The whole of a stream has none.

    Attributes:
        connect: to open a connection, TLS included.
        first_token: from the request to the first event of a stream, retries included.
        idle: between two events of a stream. Bytes that complete no event do not count.
        whole: from the request to the end of an answer that is not streamed, retries included.
    """

    connect: float = 2.0
    first_token: float = 60.0
    idle: float = 30.0
    whole: float = 600.0  # the default timeout of OpenAI's client


class Retries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a request that was not answered is sent again (see `backends.remote.retry`).

    Attributes:
        attempts: most attempts for one request, the first included.
        budget: most retries per request, averaged over all recent requests.
        base: seconds; the n-th pause is drawn uniformly between 0 and `base * 2^n`.
        cap: seconds; the longest pause.
    """

    attempts: int = 3
    budget: float = 0.1  # the share that "Site Reliability Engineering" recommends (chapter 21)
    base: float = 0.05
    cap: float = 1.0


class RemoteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Configuration of a remote backend.

    Attributes:
        url: the server's base URL; for the OpenAI kinds it ends in `/v1`.
        api_key_env: the environment variable that holds the server's key.
        key_header: the header for the key, instead of `authorization: Bearer` (Azure: `api-key`).
        headers: more headers, sent with every request. Not for secrets: this is a configuration file.
        models: our model names -> the server's, where they differ and no served entity names the model.
        timeouts: how long to wait.
        limits: bounds on connections, and so on concurrent requests.
        retries: when to send a request again.
        failures: consecutive failures after which other backends are preferred, until this one answers again.
        health_interval: seconds between two health checks.
        ca_file: certificates to trust instead of the system's.
        features: what the server's models can do, if less than its protocol can express.
        context_length: tokens of prompt and answer together, for listings.
        tokenizer: the model's `tokenizer.json`, or the folder of it; gives token ids where the server returns none, and
            tokenizes texts. Without it, protocols whose tokens must have an id get 0, marked by a header.
        chat_template: for servers of raw text: the model's chat template in Jinja, or a file of it; by default that of
            the folder `tokenizer`. With one, the backend takes chats.
        raw_text: "as_chat" makes one user turn of a text without a chat template, for servers that take conversations
            only; "refuse" refuses it. By default it is sent if the protocol has a form for it.
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
    chat_template: str | None = None
    raw_text: Literal["as_chat", "refuse"] | None = None

    def __post_init__(self) -> None:
        split_url(self.url)  # raises `ValueError`, which msgspec reports with the option's path


def read_key(options: RemoteOptions) -> str:
    """The server's key; "" if it needs none.

    Raises:
        ValueError: the environment variable is not set.
    """
    if options.api_key_env is None:
        return ""
    # Stripped: a key read from a file often ends in a line feed, which no header may hold.
    key = os.environ.get(options.api_key_env, "").strip()
    if not key:
        raise ValueError(f"the environment variable {options.api_key_env} is not set")
    return key


def make_transport(options: RemoteOptions, key: str) -> Transport:
    """The client of the server.

    Raises:
        ValueError: a header cannot be sent.
        OSError: the certificates cannot be read.
    """
    secret: Headers = ()
    if key:
        secret = ((options.key_header, key),) if options.key_header else (("authorization", f"Bearer {key}"),)
    return Transport(
        options.url,
        headers=(*options.headers.items(), *secret),
        limits=options.limits,
        connect_timeout=options.timeouts.connect,
        tls=ssl.create_default_context(cafile=options.ca_file) if options.ca_file else None,
    )
