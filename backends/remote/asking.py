"""One attempt at an answer: sends a request to the server, and reads its whole answer or the beginning of a stream.

Each attempt is reported to its observer (`backends.observation`): when it is sent, what came back, how it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from adapters.base import ClientCodec, Outbound, Reply
from backends.base import Capabilities, Feature
from backends.observation import Attempt, Upstream, attempt
from backends.remote.event_stream import EventStream
from backends.remote.resilience.breaker import Breaker
from backends.transport import Exchanger, Response
from schemas.errors import BackendFailed, Fault, GatewayError, UnsupportedFeature, UnsupportedOperation
from schemas.ir import Embed, Events, Generate
from schemas.origin import Relay

_BYTES_PER_TOKEN = 4
_MOST_PROMPT_TOKENS = 8192
"""Longer bodies are mostly images, whose bytes are no text."""
_RPC = "application/grpc"
_STREAMS = frozenset({"text/event-stream", "application/x-ndjson", _RPC})
"""The media types of streams."""
_WHOLE = frozenset({"application/json", _RPC, ""})
"""The media types of whole answers."""
_USUAL_ANSWER = 256
"""Tokens of an answer without `max_tokens`."""


class Spoken(NamedTuple):
    """A protocol that a server speaks: its client codec, the path below the URL where it does, the model's name in
    requests where none is configured (None: the endpoint's own), and the clients' operations that go through it (all,
    if it names none).
    """

    codec: ClientCodec
    prefix: str = ""
    model: str | None = None
    operations: frozenset[str] = frozenset()


def queued(outbound: Outbound, request: Generate | Embed | Relay) -> Outbound:
    """The request with what its place in the line for a connection depends on."""
    tokens = min(len(outbound.body) // _BYTES_PER_TOKEN + 1, _MOST_PROMPT_TOKENS)
    if isinstance(request, Generate):
        choices = len(request.prompts) * (request.best_of or request.n)
        tokens += choices * (request.stopping.max_new_tokens or _USUAL_ANSWER)
    return replace(outbound, flow=request.flow, tokens=tokens)


def encoded(codecs: Sequence[Spoken], request: Generate) -> tuple[ClientCodec, Outbound]:
    """Encode with the first codec that can express the request.

    Raises:
        schemas.errors.UnsupportedFeature: none can; the first one's refusal.
    """
    refusal: UnsupportedFeature | None = None
    for codec, prefix, model, operations in codecs:
        if operations and (request.origin is None or request.origin.operation not in operations):
            continue
        unnamed = model is not None and not request.model_given
        try:
            outbound = codec.encode(replace(request, model=model) if unnamed else request)
        except UnsupportedFeature as error:
            # The first codec is the most expressive, so its refusal names what is really missing.
            refusal = refusal or error
            continue
        return codec, replace(outbound, path=prefix + outbound.path) if prefix else outbound
    assert refusal is not None
    raise refusal


def without_lacking(request: Generate, capabilities: Capabilities) -> Generate:
    """The request without log-probabilities that the server does not have and the client can do without."""
    if request.logprobs_optional and Feature.LOGPROBS not in capabilities.features:
        return replace(request, logprobs=False)
    return request


class Opened(msgspec.Struct, frozen=True, eq=False):
    """An answer that has begun.

    Attributes:
        response: its head and body.
        stream: the rest of the answer; None if `events` are all of it.
        events: the first ones.
        returns_ids: whether the codec reads token ids where servers send them.
        attempt: who listens.
        breaker: the server's.
    """

    response: Response
    stream: EventStream | None
    events: Events
    returns_ids: bool
    attempt: Attempt
    breaker: Breaker

    def complete(self) -> None:
        """End a complete answer."""
        # The last chunk of the body may still be on its way; `finish` leaves the wait for it to the connection.
        self.response.finish()
        self.attempt.end()
        self.breaker.record_success()

    def failed(self, error: GatewayError) -> GatewayError:
        """Count the failure of the rest of the answer; returns the error."""
        self.attempt.end(error)
        # The retrier counts failures of attempts; those after the first event are counted here, each once.
        self.breaker.record_failure(error)
        return error

    def leave(self) -> None:
        """Ask for nothing more. To be called at the end, whatever it is."""
        self.attempt.end(asyncio.CancelledError())  # the client left, if it has not ended before
        self.response.close()


class Asking:
    """Sends the requests of one backend.

    Args:
        client: of the server.
        upstream: the server, for whoever listens.
        breaker: counts the replies' statuses.
        codec: reads the errors of answers that are not generated: embeddings and relayed requests.
        idle: the most seconds between two batches of a stream's events.
    """

    def __init__(
        self, client: Exchanger, upstream: Upstream, breaker: Breaker, codec: ClientCodec, idle: float
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._breaker = breaker
        self._codec = codec
        self._idle = idle

    async def fetch(
        self, outbound: Outbound, model: str, deadline: float, absent: UnsupportedOperation | None = None
    ) -> Reply:
        """An answer that is not generated; `absent` is the error of a path that is not there.

        Raises:
            schemas.errors.GatewayError: there is no such answer, or none by `deadline`.
        """
        observed = attempt(self._upstream, model)
        try:
            response = await self._client.exchange(_traced(outbound, observed), deadline)
            observed.answered(response.status)
            try:
                reply = await response.reply(deadline)
            finally:
                response.close()
            if reply.status != 200:
                self._breaker.record_status(reply.status)
                if absent is not None and reply.status in (404, 405, 501):
                    raise absent
                raise _error_of(self._codec, reply)
        except BaseException as error:
            observed.end(error)
            raise
        observed.end()
        return reply

    async def open(self, codec: ClientCodec, request: Generate, outbound: Outbound, deadline: float) -> Opened:
        """The first events: those of a stream, or all events of an answer that is not streamed.

        Raises:
            schemas.errors.GatewayError: there are none, or none by `deadline`.
        """
        observed = attempt(self._upstream, request.model)
        try:
            response = await self._client.exchange(_traced(outbound, observed), deadline)
            observed.answered(response.status)
            try:
                stream, events = await self._begin(response, codec, request, deadline)
            except BaseException:  # cancellation included
                response.close()
                raise
        except BaseException as error:
            observed.end(error)
            raise
        return Opened(response, stream, events, codec.returns_token_ids(request), observed, self._breaker)

    async def _begin(
        self, response: Response, codec: ClientCodec, request: Generate, deadline: float
    ) -> tuple[EventStream | None, Events]:
        if response.status != 200:
            # Errors of a status have no fault: this is where the breaker counts them.
            self._breaker.record_status(response.status)
            raise _error_of(codec, await response.reply(deadline))
        # The media type decides, not the request alone: errors and servers without streaming answer with JSON.
        if request.stream and response.media_type in _STREAMS:
            stream = EventStream(response, codec.decoder(request), self._idle)
            return stream, await stream.first(deadline)
        reply = await response.reply(deadline)
        # Proxies answer 200 with an HTML page; servers that ignore `stream` answer a stream with one JSON object.
        if reply.media_type not in _WHOLE:
            page = ": it is a web page (text/html)" if reply.media_type == "text/html" else ""
            raise BackendFailed(f"The backend's answer is not of its protocol{page}.", fault=Fault.MALFORMED)
        return None, codec.decode(request, reply)


def _traced(outbound: Outbound, observed: Attempt) -> Outbound:
    return replace(outbound, trace=observed.headers) if observed.headers else outbound


def _error_of(codec: ClientCodec, reply: Reply) -> GatewayError:
    """The error of a reply with an error status.

    401 and 403 are about the gateway's key: the client can do nothing about them and must not take them for its own.
    """
    if reply.status in (401, 403):
        # No `fault`: not retried, since the same key would be refused again.
        return BackendFailed("The backend refused the gateway's key.", code="upstream_unauthorized")
    return codec.error(reply)
