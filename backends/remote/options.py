"""The configuration of a remote backend."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from backends.affinity import AffinityPolicy
from backends.base import Feature
from backends.transport import TransportLimits, check_proxy, split_url
from backends.transport.limits import Count, NotNegative, Seconds

_OF_RAW_TEXT = frozenset({Feature.TOKEN_PROMPTS, Feature.PROMPT_LOGPROBS, Feature.SUFFIX, Feature.BEST_OF})
"""What servers have for raw text alone."""

_ROUTES = (
    "/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models",
    "/v1/messages",
    "/v1/responses",
    "/generate_stream",
)
"""Whole routes that people write where a server's base is wanted."""


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Timeouts in seconds. The whole of a stream has none.

    Attributes:
        connect: to open a connection, TLS included.
        first_token: from the request to the first event of a stream, retries included.
        idle: between two events of a stream. Bytes that complete no event do not count.
        whole: from the request to the end of an answer that is not streamed, retries included.
    """

    connect: Seconds = 2.0
    first_token: Seconds = 60.0
    idle: Seconds = 30.0
    whole: Seconds = 600.0  # the default timeout of OpenAI's client


class Retries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a request that was not answered is sent again (see `backends.remote.resilience.retry`).

    Attributes:
        attempts: most attempts for one request, the first included.
        budget: most retries per request, averaged over all recent requests.
        base: seconds; the n-th pause is drawn uniformly between 0 and `base * 2^n`.
        cap: seconds; the longest pause. A server that asks for a longer one is not asked again.
    """

    attempts: Count = 3
    budget: NotNegative = 0.1  # the share that "Site Reliability Engineering" recommends (chapter 21)
    base: NotNegative = 0.05
    cap: NotNegative = 1.0


class FromEnvironment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret: the value of the environment variable `env`."""

    env: str


RemoteRouting = AffinityPolicy | Literal["latency"]
Value = str | FromEnvironment
Variables = str | Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class RemoteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Configuration of a remote backend.

    Attributes:
        url: the server's base URL; for the OpenAI kinds it ends in `/v1`.
        urls: the base URLs of several servers of the same protocol and model, instead of `url`.
        routing: which of several servers gets a request (`backends.remote.servers`).
        api_key_env: the environment variable that holds the server's key, or several: their keys take turns, and one
            that is refused (401) or limited (429) rests.
        key_header: the header for the key, instead of `authorization: Bearer` (Azure: `api-key`).
        headers: more headers, sent with every request; `{ env = "NAME" }` is the value of an environment variable, for
            secrets.
        models: our model names -> the server's, where they differ and no served entity names the model.
        timeouts: how long to wait.
        limits: bounds on connections, and so on concurrent requests.
        retries: when to send a request again.
        failures: consecutive failures after which other backends are preferred, until this one answers again.
        health_interval: seconds between two health checks.
        ca_file: certificates to trust instead of the system's.
        extra_ca_file: certificates to trust beside the system's.
        client_cert: a certificate to show to the server, with its chain and, unless `client_key` is another file, key.
        client_key: the certificate's private key.
        proxy: the URL of an HTTP or SOCKS proxy, which may hold a user and a password (then `{ env = "NAME" }`), or
            "direct"; by default the one that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY name.
        http2: offers HTTP/2; over `http` speaks it without asking.
        unix_socket: the path of a socket to connect to, instead of the host of `url`.
        features: what the server's models can do, if less than its protocol can express.
        context_length: tokens of prompt and answer together: for listings, and for conversations that may be shortened
            (`truncation: "auto"`), for which it goes before what the server tells.
        tokenizer: the model's `tokenizer.json`, or the folder of it; gives token ids where the server returns none, and
            tokenizes texts. Without it, protocols whose tokens must have an id get 0, marked by a header.
        chat_template: for servers of raw text: the model's chat template in Jinja, or a file of it; by default that of
            the folder `tokenizer`. With one, the backend takes chats.
        raw_text: "as_chat" makes one user turn of a text without a chat template, for servers that take conversations
            only; "refuse" refuses it. By default it is sent if the protocol has a form for it.
    """

    url: str = ""
    urls: tuple[str, ...] = ()
    routing: RemoteRouting = "prefix"
    api_key_env: Variables | None = None
    key_header: str | None = None
    headers: dict[str, Value] = {}
    models: dict[str, str] = {}
    timeouts: Timeouts = Timeouts()
    limits: TransportLimits = TransportLimits()
    retries: Retries = Retries()
    failures: Count = 5
    health_interval: Seconds = 5.0
    ca_file: str | None = None
    extra_ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    proxy: Value | None = None
    http2: bool = False
    unix_socket: str | None = None
    features: frozenset[Feature] | None = None
    context_length: Count | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    raw_text: Literal["as_chat", "refuse"] | None = None

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.urls):
            raise ValueError("give `url`, or `urls` for several servers")
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("`urls` names a server twice")
        for url in (self.url,) if self.url else self.urls:
            _check_base(url)
        if self.client_key is not None and self.client_cert is None:
            raise ValueError("`client_key` needs a `client_cert`")
        if self.unix_socket is not None and self.proxy not in (None, "direct"):
            raise ValueError("a `unix_socket` cannot be reached through a `proxy`")
        if isinstance(self.proxy, str) and self.proxy != "direct" and "@" in urlsplit(check_proxy(self.proxy)).netloc:
            raise ValueError('the password of a `proxy` is a secret: say `proxy = { env = "NAME" }`')

    @property
    def servers(self) -> tuple[RemoteOptions, ...]:
        """The options of each server."""
        return tuple(replace(self, url=url, urls=()) for url in self.urls) or (self,)

    @property
    def key_variables(self) -> tuple[str, ...]:
        """The environment variables of the server's keys."""
        names = self.api_key_env
        return () if names is None else (names,) if isinstance(names, str) else names

    def offered(self, features: frozenset[Feature]) -> frozenset[Feature]:
        """What is offered of the features that codecs can express, which the options narrow and never widen."""
        if self.raw_text is not None:
            features -= _OF_RAW_TEXT
        # What is counted exactly here needs no server that says when a conversation is too long.
        if Feature.CHAT not in features and None not in (self.context_length, self.tokenizer):
            features |= {Feature.TRUNCATION}
        return features if self.features is None else features & self.features


def _check_base(url: str) -> None:
    """Pass the base URL of a server.

    Raises:
        ValueError: it is none; msgspec reports that with the backend's path.
    """
    try:
        path = split_url(url).path.rstrip("/")
    except ValueError as error:
        raise ValueError(f"`url`: {error}") from None
    if route := next((route for route in _ROUTES if path.endswith(route)), None):
        raise ValueError(f"`url` is the server's base: leave out {route} at its end")
