"""Parts of adapters that only some protocols have. The gateway asks by `isinstance` whether a codec has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeGuard, runtime_checkable

import msgspec

from adapters.base import (
    Call,
    ClientCodec,
    Outbound,
    Record,
    Reply,
    Route,
    StreamEncoder,
)
from adapters.formats.text_runs import TextRuns
from adapters.objects import Follow, Steps
from schemas.completion import Completion
from schemas.ir import Embed, Embeddings, Events, Generate
from schemas.origin import Relay
from schemas.scores import Score, Scores


class RecordingEncoder(Protocol):
    """A `StreamEncoder` whose answer may be stored, before the bytes of its end are sent."""

    record: Record | None
    """The record to store; None before the end of the stream, and if nothing is stored."""


def record_of(encoder: StreamEncoder) -> Record | None:
    """The record of a `RecordingEncoder`; None of others."""
    return getattr(encoder, "record", None)


class Opening(msgspec.Struct, frozen=True):
    """The begin of an answer in the background: its record, number and bytes of its events, and the client's reply."""

    record: Record
    number: int
    events: bytes
    reply: Reply


RunWriter = tuple[bytes, bytes] | Callable[[list[bytes]], bytes]
"""What writes texts: the bytes around each one, or a function of several."""


@runtime_checkable
class RunDecoder(Protocol):
    """A decoder of streams that finds runs of texts without decoding."""

    def run(self, data: bytes) -> Events:
        """The events of bytes that add texts and nothing else; () of others, which are to be fed. Never fails."""
        ...


@runtime_checkable
class FramedRunDecoder(Protocol):
    """A decoder that knows what runs of texts look like in the transfer coding (RFC 9112, section 7.1)."""

    def framed_runs(self) -> tuple[TextRuns, bool] | None:
        """What they look like, and whether they are relayed as they came; None: there are none, until more was fed."""
        ...

    def pass_by(self, texts: int) -> None:
        """Count so many texts that were found so. To be called before anything else is."""
        ...


@runtime_checkable
class RunEncoder(Protocol):
    """An encoder that writes runs of texts without decoding them."""

    def run_writer(self, choice: int) -> RunWriter | None:
        """What writes texts that a choice gains, until more is fed; None: these are to be fed.

        Returns:
            The bytes around each text, or a function that gets texts. These are as they stand in JSON strings: UTF-8,
            none of them empty, without an escape and line separators. What is written is what `feed` returns for a
            delta of each text.
        """
        ...


def finds_framed_runs(decoder: object) -> TypeGuard[FramedRunDecoder]:
    """Whether a decoder is a `FramedRunDecoder`."""
    return _has(decoder, FramedRunDecoder)


def writes_runs(encoder: object) -> TypeGuard[RunEncoder]:
    """Whether an encoder is a `RunEncoder`."""
    return _has(encoder, RunEncoder)


_KNOWN: dict[tuple[type, type], bool] = {}


def _has(part: object, protocol: type) -> bool:
    """Whether an object has a protocol: asked once for each class, as `isinstance` takes long to find out."""
    known = _KNOWN.get((type(part), protocol))
    if known is None:
        known = _KNOWN[type(part), protocol] = isinstance(part, protocol)
    return known


@runtime_checkable
class PlainClient(ClientCodec, Protocol):
    """A client codec that reads plain answers: those of one choice."""

    def answers_plainly(self, request: Generate) -> bool:
        """Whether the answer to a request may be one, be it whole or a stream."""
        ...

    def read_plain(self, request: Generate, body: bytes) -> Completion | None:
        """The answer in a body of JSON with status 200, as the fold of what `decode` returns.

        None: it is not plain, or to be refused by `decode`.
        """
        ...


@runtime_checkable
class PlainCodec(Protocol):
    """The part of a server codec that reads the plain requests of a protocol: small ones for one text, and quickly."""

    def read_plain(self, route: Route, body: bytes, call: Call) -> Generate | None:
        """The request that `ServerCodec.decode` would read; None: that is to read or to refuse it.

        No plain request has fields that are unknown, kept or without effect.

        Raises:
            schemas.errors.RequestError: `decode` would refuse it, too.
        """
        ...


@runtime_checkable
class DetachableEncoder(StreamEncoder, Protocol):
    """An encoder of answers in the background, which sets `record` at its begin and after a failure, too."""

    record: Record | None

    def open(self) -> Opening:
        """What precedes the answer's events (SSE); to be called once, before `feed`."""
        ...


@runtime_checkable
class ScoringCodec(Protocol):
    """The part of a server codec for relayed requests that models here can answer, too (`Relay.scoring`)."""

    def read_score(self, request: Relay) -> Score:
        """Decode the body of a relayed request.

        Raises:
            schemas.errors.RequestError: it is invalid.
        """
        ...

    def encode_scores(self, request: Score, answer: Scores) -> Reply:
        """The answer to a request of `read_score`."""
        ...


@runtime_checkable
class SummaryCodec(Protocol):
    """The part of a server codec for relayed requests that any model can answer with a text (`Relay.by_text`)."""

    def read_by_text(self, request: Relay) -> Generate:
        """The request for that text; `ServerCodec.encode` writes the answer.

        Raises:
            schemas.errors.RequestError: the body is invalid.
        """
        ...


@runtime_checkable
class ObjectCodec(Protocol):
    """The part of a server codec for routes that use stored objects."""

    def steps(self, route: Route, call: Call, body: bytes) -> Steps[Reply | Follow]:
        """The steps that answer a request of a route of the kind `object`; they raise `RequestError`s."""
        ...

    def end_lost(self, id: str) -> Steps[None]:
        """End an answer in the background whose worker is gone, unless it has ended meanwhile."""
        ...

    def needed(self, route: Route, body: bytes) -> tuple[str, str] | None:
        """The kind and id of the object whose entries `decode` wants (`Call.entries`); None: it wants none."""
        ...


def has_objects(codec: object) -> TypeGuard[ObjectCodec]:
    """Whether a codec is an `ObjectCodec`."""
    return _has(codec, ObjectCodec)


@runtime_checkable
class EmbeddingCodec(Protocol):
    """The part of a client codec for embeddings, in protocols that have them."""

    def encode_embed(self, request: Embed) -> Outbound:
        """Encode a request for embeddings.

        Raises:
            schemas.errors.UnsupportedFeature: the protocol cannot express it.
        """
        ...

    def decode_embeddings(self, request: Embed, reply: Reply) -> Embeddings:
        """The embeddings of an answer.

        Raises:
            schemas.errors.BackendError: the answer is an error or violates the protocol.
        """
        ...

    def ignored(self, request: Embed) -> tuple[str, ...]:
        """The fields among `request.unknown` that `encode_embed` does not send."""
        ...


@runtime_checkable
class RelayCodec(Protocol):
    """The part of a client codec for requests whose bodies are sent on as they came."""

    @property
    def relayed(self) -> frozenset[tuple[str, str]]:
        """The dialects and operations (`Route.name`) of which the remote is sent the client's own body."""
        ...

    def encode_relay(self, request: Relay) -> Outbound:
        """The request for the remote: the client's body with the remote's name of the model."""
        ...
