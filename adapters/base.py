"""The interface of protocols: routes, replies, and the two codecs that each protocol implements.

A protocol is an `Adapter`: a name, its dialects (data, see each folder's `dialects.py`) and two codecs. The server
codec reads clients' requests and writes the answers; the client codec writes requests to a remote server of the
protocol and reads its answers. Only the protocol's own folder knows the fields of its dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from adapters.objects import RESPONSE, Append, Entry
from schemas.catalog import Catalog, Change
from schemas.completion import Completion
from schemas.errors import GatewayError, MethodNotAllowed, Quota
from schemas.ir import Embed, Embeddings, Events, Generate, Request, TokenIds, Tokenize, Tokens

JSON = "application/json"
Headers = tuple[tuple[str, str], ...]
RawHeaders = list[tuple[bytes, bytes]]
"""As they go onto the wire, names in lower case."""


# No protocol has a field for this. Without the header, ids that were retokenised or made up look like the model's.
TOKEN_IDS = "x-interlingua-token-ids"
"""The response header for token ids that may not be the model's own."""


def token_id_headers(ids: TokenIds) -> Headers:
    """The header that names the source of the token ids; none if that is the model."""
    return () if ids == "model" else ((TOKEN_IDS, ids),)


def error_headers(error: GatewayError) -> Headers:
    """The headers of the reply to an error: when to try again, and the methods that a path has."""
    headers: Headers = ()
    if error.retry_after is not None:
        # Whole seconds, at least 1: Anthropic's SDKs ignore a `retry-after` of 0 and use their own backoff.
        headers += (("retry-after", str(max(1, round(error.retry_after)))),)
    if isinstance(error, MethodNotAllowed) and error.allowed:
        headers += (("allow", ", ".join(error.allowed)),)
    return headers


class Route(msgspec.Struct, frozen=True):
    """One method on one path template (`/v2/models/{model}/generate`, `{model:path}` where slashes may occur).

    `kind` says what `decode` returns for it: a request to run, a change of what is served (`manage`), after which
    `describe` answers, or nothing (`describe`; `object` is answered by `ObjectCodec.steps`). `store` routes are
    those of files and batches (`adapters.batches`).
    `body` and `answer` are wire structs for the OpenAPI document; `example` is a body to try it with, in which
    "{model}" stands for the model's name. `open` routes want no key. Only routes that say `stores` get `Call.records`;
    the answers of those that say `keeps` may be stored, too.
    `form` routes take multipart forms, too. `fields`: where another protocol has the same path, the bodies with one of
    these fields are this route's; `header`: likewise the requests with this header.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    name: str
    kind: Literal["generate", "embed", "tokenize", "relay", "describe", "object", "manage", "store"]
    summary: str
    body: Any = None
    answer: Any = None
    streams: bool = False
    example: Any = None
    open: bool = False
    stores: bool = False
    keeps: bool = False
    form: bool = False
    fields: frozenset[str] = frozenset()
    header: str | None = None


class Records(Protocol):
    """The stored answers of one API key. The oldest are evicted."""

    def get(self, id: str) -> bytes | None:
        """The data stored under an id; None if there is none, or no longer."""
        ...

    def delete(self, id: str) -> bool:
        """Delete the record of an id; whether there was one."""
        ...


class Record(msgspec.Struct, frozen=True):
    """What is to be stored of an answer: an object by its id, unless `data` is None, and entries of another object.

    `also` are further records, which are stored with it.
    """

    id: str
    data: bytes | None
    kind: str = RESPONSE
    entries: tuple[Entry, ...] = ()
    append: Append | None = None
    also: tuple[Record, ...] = ()


class Call(msgspec.Struct, frozen=True):
    """What a request carries beside its body. Header names are lower case. `records` None: nothing is kept.

    `query`: of a list (`include[]`), the values with commas between them.
    `entries`: those of the object that `ObjectCodec.needed` named; None: there is no such object.
    `keeps`: whether the answer can be kept as an object.
    """

    id: str
    catalog: Catalog
    # msgspec copies an empty dict default for each instance: the defaults are not shared.
    path: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    records: Records | None = None
    entries: tuple[bytes, ...] | None = None
    keeps: bool = False


class Reply(msgspec.Struct, frozen=True):
    """A complete HTTP response. `record` is stored before the response is sent."""

    body: bytes = b""
    status: int = 200
    media_type: str = JSON
    headers: Headers = ()
    record: Record | None = None


class StreamEncoder(Protocol):
    """The encoder of one stream. For `Usage`, the last event, it writes the protocol's terminator.

    `headers` are read after the first call of `feed` and may depend on that batch.
    `status_waits`: the status line waits for the first bytes, so that an error before them has a status of its own; if
    not, it is sent with the backend's first event.
    `abort_after_error`: after `fail` the connection is reset, for clients that take any other end as the answer's.
    """

    media_type: str
    headers: Headers
    status_waits: bool
    abort_after_error: bool

    def feed(self, events: Events) -> bytes:
        """The bytes of these events; may be empty while something is held back."""
        ...

    def fail(self, error: GatewayError) -> bytes:
        """The protocol's in-stream error. Nothing follows it, and it is never a clean end."""
        ...


class ServerCodec(Protocol):
    """The server side of a protocol: reads requests of clients, writes answers.

    Attributes:
        routes: the protocol's.
        id_header: the header in which its clients look for the id of their request, beside `x-request-id`, which every
            answer has; "": in none.
    """

    routes: ClassVar[tuple[Route, ...]]
    id_header: ClassVar[str]

    def decode(self, route: Route, body: bytes, call: Call) -> Request | Change | Reply:
        """Decode a request. One that asks for nothing that a model would do is answered by a `Reply`.

        Raises:
            schemas.errors.RequestError: the request is invalid.
        """
        ...

    # A codec is built once for each dialect and serves all requests, so what changes during an answer is in the
    # encoder.
    def encoder(self, request: Generate) -> StreamEncoder:
        """The encoder of the streamed answer to `request`."""
        ...

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The complete answer to `request`.

        Raises:
            schemas.errors.GatewayError: the protocol cannot express the answer.
        """
        ...

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:
        """The answer to a request for embeddings."""
        ...

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:
        """The answer to a request for tokens."""
        ...

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:
        """Answer a route that runs no model: describe what is served, after a `manage` route in its changed state.

        Raises:
            schemas.errors.RequestError: the requested object does not exist.
        """
        ...

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:
        """The error response while nothing of a stream is written; `request` is None if it could not be decoded."""
        ...

    def limit_headers(self, quotas: Sequence[Quota]) -> RawHeaders:
        """The headers of an answer to a client that has limits; asked for with each such answer."""
        ...


class RpcCodec(ServerCodec, Protocol):
    """The server side of a protocol over gRPC.

    The path of a route is a method's, and `Route.streams` says that requests and answers are streams. A request's body
    is one message. The body of an answer is any number of messages as gRPC frames them; the header `grpc-status` of a
    reply, with `grpc-message`, is the status of a call without an answer.
    """

    def stream_error(self, message: str, body: bytes) -> bytes:
        """The framed message that tells of an error in a stream, which goes on.

        Args:
            message: what is wrong.
            body: the request that has no answer.
        """
        ...


class Outbound(msgspec.Struct, frozen=True):
    """A request to a remote, its path relative to the remote's base URL.

    `beside_v1`: relative to the base URL without a `/v1` at its end, where some servers have routes beside their API.
    `flow` and `tokens`: whose it is, and about how many tokens it has, where requests wait for a connection.
    `trace`: headers of this one request, which say what it is part of.
    Over gRPC, `path` is a method with one answer, and `stream_path` one with streams of messages. With both, the second
    one is called if the server refuses the first one (UNIMPLEMENTED) in words that hold `stream_if`.
    """

    path: str
    body: bytes
    method: Literal["GET", "POST"] = "POST"
    headers: Headers = (("content-type", JSON),)
    beside_v1: bool = False
    flow: str = ""
    tokens: int = 1
    trace: Headers = ()
    stream_path: str = ""
    stream_if: str = ""


class StreamDecoder(Protocol):
    """The decoder of one stream.

    `before`: after `feed` has raised, the events that its bytes completed before the faulty ones.
    """

    before: Events

    def feed(self, data: bytes) -> Events:
        """The events completed by these bytes.

        Raises:
            schemas.errors.BackendError: the remote reported an error or violated the protocol.
        """
        ...

    # The decoder decides whether the answer is complete, not the socket: some servers reset the connection after a
    # complete answer, others close it cleanly in the middle of one.
    def close(self) -> Events:
        """Handle the end of the connection: the remaining events.

        Raises:
            schemas.errors.Incomplete: the stream was not complete.
        """
        ...


class ClientCodec(Protocol):
    """The client side of a protocol: writes requests to a remote server, reads its answers."""

    def encode(self, request: Generate) -> Outbound:
        """Encode a request.

        Raises:
            schemas.errors.UnsupportedFeature: the protocol cannot express it.
        """
        ...

    def decoder(self, request: Generate) -> StreamDecoder:
        """The decoder of the streamed answer to `request`."""
        ...

    # Also called for a streamed request: a server that ignores `stream` answers with one JSON object.
    def decode(self, request: Generate, reply: Reply) -> Events:
        """The events of a non-streamed answer to `request`, as one complete stream.

        Raises:
            schemas.errors.BackendError: the answer is an error or violates the protocol.
        """
        ...

    # The answer's `Started.token_ids` depends on it: ids that a protocol does not have must not pass for the model's.
    def returns_token_ids(self, request: Generate) -> bool:
        """Whether the answer to `request` contains token ids."""
        ...

    def ignored(self, request: Generate | Embed) -> tuple[str, ...]:
        """The fields among `request.unknown`, and of a `Generate`'s `unread`, that `encode` does not send."""
        ...

    def error(self, reply: Reply) -> GatewayError:
        """The error that a reply with an error status stands for."""
        ...


@dataclass(frozen=True, slots=True)
class Adapter:
    """One protocol, as registered under the entry point group `gateway.adapters`.

    `dialects` maps a dialect's name to its data; the first one is the default. `rpc` and `rpc_client`: the codecs over
    gRPC, where the protocol has them.
    """

    name: str
    dialects: Mapping[str, Any]
    # Both take the dialect. Bodies over a threshold are decoded in a thread, so a codec has no mutable state.
    server: Callable[[Any], ServerCodec]
    client: Callable[[Any], ClientCodec]
    rpc: Callable[[Any], RpcCodec] | None = None
    rpc_client: Callable[[Any], ClientCodec] | None = None


@dataclass(frozen=True, slots=True)
class RemoteAdapter:
    """A protocol that remotes speak and no client does: an `Adapter` without a server codec, and not registered."""

    name: str
    dialects: Mapping[str, Any]
    client: Callable[[Any], ClientCodec]
    rpc_client: Callable[[Any], ClientCodec] | None = None
