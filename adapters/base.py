"""The seam every protocol is written against: routes, the two faces, replies.

A protocol is an `Adapter`: a name, its dialects (data, see each folder's `dialects.py`), and a class for either face.
`server` is what our clients see, `client` is how a remote of that kind is called. What a dialect is, only its own
folder knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import msgspec

from schemas.catalog import Catalog, Change
from schemas.completion import Completion
from schemas.errors import GatewayError
from schemas.ir import Embed, Embeddings, Events, Generate, Request, TokenIds, Tokenize, Tokens

JSON = "application/json"
Headers = tuple[tuple[str, str], ...]


TOKEN_IDS = "x-interlingua-token-ids"
"""The header that marks an answer whose token ids may not be the model's own."""


def token_id_headers(ids: TokenIds) -> Headers:
    """The mark, where there is something to mark."""
    return () if ids == "model" else ((TOKEN_IDS, ids),)


class Route(msgspec.Struct, frozen=True):
    """One method on one path template (`/v2/models/{model}/generate`, `{model:path}` where slashes may occur).

    `kind` says what `decode` returns for it: a request to run, a change of what is served (`manage`), after which
    `describe` answers, or nothing (`describe`).
    `body` and `answer` are wire structs for the OpenAPI document; `example` is a body to try it with, in which
    "{model}" stands for the model's name. `open` routes want no key. Only routes that say `stores` get `Call.records`.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    name: str
    kind: Literal["generate", "embed", "tokenize", "describe", "manage"]
    summary: str
    body: Any = None
    answer: Any = None
    streams: bool = False
    example: Any = None
    open: bool = False
    stores: bool = False


class Records(Protocol):
    """What was answered and may be asked for again, by who asked: nobody sees another key's. Forgets the oldest."""

    def get(self, id: str) -> bytes | None:
        """What was kept under an id; None if nothing is any more."""
        ...

    def delete(self, id: str) -> bool:
        """Forget it; whether there was anything."""
        ...


class Record(msgspec.Struct, frozen=True):
    """What is to be kept of an answer."""

    id: str
    data: bytes


class Call(msgspec.Struct, frozen=True):
    """What a request carries beside its body. Header names are lower case. `records` None: nothing is kept."""

    id: str
    catalog: Catalog
    path: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    records: Records | None = None


class Reply(msgspec.Struct, frozen=True):
    """A whole HTTP answer. `record` is kept before it is sent."""

    body: bytes = b""
    status: int = 200
    media_type: str = JSON
    headers: Headers = ()
    record: Record | None = None


class StreamEncoder(Protocol):
    """One stream being written. `Usage`, the last event, makes it write the protocol's terminator.

    `headers` are sent once the first batch was fed, and may depend on it.
    `abort_after_error`: after `fail` the connection is cut, for clients that would take any other end for a good one.
    """

    media_type: str
    headers: Headers
    abort_after_error: bool

    def feed(self, events: Events) -> bytes:
        """The bytes that say these events; may be empty while something must be held back."""
        ...

    def fail(self, error: GatewayError) -> bytes:
        """The protocol's in-stream error, after which nothing is written; never a clean end."""
        ...


@runtime_checkable
class RecordingEncoder(Protocol):
    """A `StreamEncoder` whose answer may have to be kept: before the bytes of its end are sent."""

    record: Record | None
    """What is to be kept; None before the end, and if nothing is."""


class ServerCodec(Protocol):
    """What clients of a protocol see."""

    routes: ClassVar[tuple[Route, ...]]

    def decode(self, route: Route, body: bytes, call: Call) -> Request | Change:
        """Read a request.

        Raises:
            schemas.errors.RequestError: it is not one we can read.
        """
        ...

    def encoder(self, request: Generate) -> StreamEncoder:
        """A writer for the streamed answer to `request`."""
        ...

    def encode(self, request: Generate, answer: Completion) -> Reply:
        """The whole answer to `request`.

        Raises:
            schemas.errors.GatewayError: the protocol has no words for such an answer.
        """
        ...

    def encode_embeddings(self, request: Embed, answer: Embeddings) -> Reply:
        """The answer to a request for vectors."""
        ...

    def encode_tokens(self, request: Tokenize, answer: Tokens) -> Reply:
        """The answer to a request for tokens."""
        ...

    def describe(self, route: Route, call: Call, body: bytes) -> Reply:
        """Answer a route that runs nothing; one that changed something: as it is now.

        Raises:
            schemas.errors.RequestError: what it asks about is not there.
        """
        ...

    def error(self, error: GatewayError, request: Generate | None = None) -> Reply:
        """The answer when nothing of a stream was written yet; `request` if it could be decoded."""
        ...


class Outbound(msgspec.Struct, frozen=True):
    """A request to a remote, its path relative to the remote's base URL."""

    path: str
    body: bytes
    method: Literal["GET", "POST"] = "POST"
    headers: Headers = (("content-type", JSON),)


class StreamDecoder(Protocol):
    """One stream being read.

    `before`: once `feed` has raised, the events that its bytes had completed before what was wrong with them.
    """

    before: Events

    def feed(self, data: bytes) -> Events:
        """The events completed by these bytes.

        Raises:
            schemas.errors.BackendError: the remote reported an error, or what it sent makes no sense.
        """
        ...

    def close(self) -> Events:
        """The connection ended: the events that were still due.

        Raises:
            schemas.errors.Incomplete: the stream was not finished.
        """
        ...


class ClientCodec(Protocol):
    """How a remote of a protocol is called."""

    def encode(self, request: Generate) -> Outbound:
        """Write a request.

        Raises:
            schemas.errors.UnsupportedFeature: the protocol cannot say it.
        """
        ...

    def decoder(self, request: Generate) -> StreamDecoder:
        """A reader for the streamed answer to `request`."""
        ...

    def decode(self, request: Generate, reply: Reply) -> Events:
        """The whole answer to `request`, as the complete stream of its events.

        Raises:
            schemas.errors.BackendError: it is an error, or makes no sense.
        """
        ...

    def returns_token_ids(self, request: Generate) -> bool:
        """Whether the answer to `request` tells the ids of its tokens."""
        ...

    def error(self, reply: Reply) -> GatewayError:
        """What a reply with an error status means."""
        ...


@runtime_checkable
class EmbeddingCodec(Protocol):
    """What the client face of a protocol can do beside, if that knows vectors."""

    def encode_embed(self, request: Embed) -> Outbound:
        """Write a request for vectors.

        Raises:
            schemas.errors.UnsupportedFeature: the protocol cannot say it.
        """
        ...

    def decode_embeddings(self, request: Embed, reply: Reply) -> Embeddings:
        """The answer to a request for vectors.

        Raises:
            schemas.errors.BackendError: it is an error, or makes no sense.
        """
        ...


@dataclass(frozen=True, slots=True)
class Adapter:
    """One protocol, as registered under the entry point group `gateway.adapters`.

    `dialects` maps a dialect's name to its table; the first one is the default.
    """

    name: str
    dialects: Mapping[str, Any]
    server: Callable[[Any], ServerCodec]
    client: Callable[[Any], ClientCodec]
