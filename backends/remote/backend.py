"""The remote backend: a request goes out through a client face, events come back.

Every failure is told: a stream is complete if its decoder says so, whatever the socket did. Retries happen before the
first event and nowhere else.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, get_args

import msgspec

from adapters.base import TOKEN_IDS, ClientCodec, EmbeddingCodec, Headers, Outbound, Reply
from backends.base import Capabilities, Feature, Health
from backends.remote.breaker import Breaker
from backends.remote.options import RemoteOptions
from backends.remote.reading import Reading
from backends.remote.retokeniser import Retokeniser
from backends.remote.retry import Retrier
from backends.remote.watch import Watch
from backends.transport import Response, Transport
from schemas.errors import BackendFailed, BackendUnavailable, Fault, GatewayError, UnsupportedFeature
from schemas.ir import Embed, Embeddings, Events, Generate, Started, TokenIds, Tokenize, Tokens, Usage

R = TypeVar("R", Generate, Embed)

_MARKS: dict[str, TokenIds] = {mark: mark for mark in get_args(TokenIds) if mark != "told"}


class RemoteBackend:
    """Answers with a server elsewhere.

    Args:
        name: the backend's name.
        options: a `RemoteOptions`, or its fields.
        faces: paths below the URL and what speaks there; a request goes through the first that can say it.
        features: what they can say.
        health: the path of a GET that shows whether it lives.
        embeddings: the face that asks for vectors, below no path; None if there are none to be had.

    Raises:
        msgspec.ValidationError: the options are wrong.
    """

    def __init__(
        self,
        name: str,
        options: RemoteOptions | Mapping[str, Any],
        *,
        faces: Sequence[tuple[str, ClientCodec]],
        features: frozenset[Feature],
        health: str,
        embeddings: EmbeddingCodec | None = None,
    ) -> None:
        self.name = name
        self._options = msgspec.convert(options, RemoteOptions)
        self._faces = faces
        self._embeddings = embeddings
        self._health_path = health
        self._breaker = Breaker(self._options.failures)
        self._retrier = Retrier(self._options.retries, self._breaker.record_failure)
        self._key = ""
        self._transport: Transport | None = None
        self._watch: Watch | None = None
        self._retokeniser: Retokeniser | None = None
        self._unusable = ""
        offered = self._options.features
        self.capabilities = Capabilities(
            features=features if offered is None else features & offered,
            embeddings=embeddings is not None,
            context_length=self._options.context_length,
            tokenize=self._options.tokenizer is not None,
        )

    async def start(self) -> None:
        """Look whether it lives, and go on looking. One that does not may come up later.

        Raises:
            schemas.errors.BackendUnavailable: its key, certificates or tokenizer cannot be used.
        """
        try:
            self._key = _key(self._options)
            self._transport = _transport(self._options, self._key)
            if self._options.tokenizer is not None:
                self._retokeniser = await asyncio.to_thread(Retokeniser, self._options.tokenizer)
        except (ValueError, OSError) as error:
            self._unusable = f"backends.{self.name}: {error}"
            raise BackendUnavailable(self._unusable) from None
        self._watch = Watch(self.name, self._transport, self._health_path, self._breaker)
        await self._watch.start(self._options.health_interval)

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        if self._watch is not None:
            await self._watch.aclose()
        if self._transport is not None:
            await self._transport.aclose()

    async def healthy(self) -> Health:
        """What was last seen."""
        if self._unusable:
            return Health("failed", self._unusable)
        return Health("loading") if self._watch is None else self._watch.health

    async def embed(self, request: Embed) -> Embeddings:
        """Ask it for vectors."""
        face = self._embeddings
        if face is None:
            raise UnsupportedFeature(f"The model '{request.model}' does not make embeddings.", feature="embeddings")
        request = self._named(request)
        outbound = face.encode_embed(request)
        deadline = asyncio.get_running_loop().time() + self._options.timeouts.whole
        try:
            reply = await self._retrier.run(partial(self._ask, outbound, deadline), deadline)
            self._breaker.record_success()
            return face.decode_embeddings(request, reply)
        except GatewayError as error:
            raise self._clean(error) from None

    async def tokenize(self, request: Tokenize) -> Tokens:
        """By the tokenizer that is named; the server's own is out of reach."""
        tokens = self._retokeniser.tokenize(request) if self._retokeniser is not None else None
        if tokens is not None:
            return tokens
        raise UnsupportedFeature(f"The model '{request.model}' does not tell its tokens.", feature="tokenize")

    async def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        """Ask it; closing the generator closes the connection, and so makes it stop."""
        request = self._named(request)
        face, outbound = self._encode(request)
        timeouts = self._options.timeouts
        deadline = asyncio.get_running_loop().time() + (timeouts.first_token if request.stream else timeouts.whole)
        try:
            response, reading, events = await self._retrier.run(
                partial(self._open, face, request, outbound, deadline), deadline
            )
        except GatewayError as error:
            raise self._clean(error) from None
        try:
            filled = self._with_ids(events)
            told = face.returns_token_ids(request) and filled == events
            yield _marked(filled, self._token_ids(response, told=told))
            while reading is not None and not isinstance(events[-1], Usage):
                events = await reading.more()
                yield self._with_ids(events)
            response.finish()
            self._breaker.record_success()
        except GatewayError as error:
            self._breaker.record_failure(error)
            raise self._clean(error) from None
        finally:
            response.close()

    def _with_ids(self, events: Events) -> Events:
        return events if self._retokeniser is None else self._retokeniser.fill(events)

    def _token_ids(self, response: Response, *, told: bool) -> TokenIds:
        """Whose the answer's ids are. An upstream that marks its own is a gateway like this one."""
        if mark := _MARKS.get(response.header(TOKEN_IDS)):
            return mark
        if told:
            return "told"
        return "synthetic" if self._retokeniser is None else "retokenised"

    def _named(self, request: R) -> R:
        model = self._options.models.get(request.model)
        return request if model is None else msgspec.structs.replace(request, model=model)

    def _encode(self, request: Generate) -> tuple[ClientCodec, Outbound]:
        """Through the first face that can say it; if none can, the first tells why."""
        refusal: UnsupportedFeature | None = None
        for prefix, face in self._faces:
            try:
                outbound = face.encode(request)
            except UnsupportedFeature as error:
                refusal = refusal or error
                continue
            return face, msgspec.structs.replace(outbound, path=prefix + outbound.path) if prefix else outbound
        assert refusal is not None
        raise refusal

    async def _ask(self, outbound: Outbound, deadline: float) -> Reply:
        """Ask once, for an answer that comes whole."""
        if self._transport is None:
            raise BackendUnavailable("The backend was not started.")
        response = await self._transport.exchange(outbound, deadline)
        try:
            reply = await response.reply(deadline)
        finally:
            response.close()
        if reply.status != 200:
            self._breaker.record_status(reply.status)
            raise _refusal(self._faces[0][1], reply)
        return reply

    async def _open(
        self, face: ClientCodec, request: Generate, outbound: Outbound, deadline: float
    ) -> tuple[Response, Reading | None, Events]:
        """Ask once, up to the first events: of a stream, or of an answer that came whole, all of them."""
        if self._transport is None:
            raise BackendUnavailable("The backend was not started.")
        response = await self._transport.exchange(outbound, deadline)
        try:
            if response.status != 200:
                self._breaker.record_status(response.status)
                raise _refusal(face, await response.reply(deadline))
            if request.stream and response.media_type == "text/event-stream":
                reading = Reading(response, face.decoder(request), self._options.timeouts.idle)
                return response, reading, await reading.first(deadline)
            reply = await response.reply(deadline)
            if reply.media_type not in ("application/json", ""):
                raise BackendFailed("The backend's answer is not of its protocol.", fault=Fault.MALFORMED)
            return response, None, face.decode(request, reply)
        except BaseException:
            response.close()
            raise

    def _clean(self, error: GatewayError) -> GatewayError:
        """An upstream may repeat the key that it was sent; its words go no further with it."""
        if self._key:
            error.message = error.message.replace(self._key, "***")
            error.args = (error.message,)
            error.param = error.param and error.param.replace(self._key, "***")
            error.code = error.code and error.code.replace(self._key, "***")
        return error


def _marked(events: Events, ids: TokenIds) -> Events:
    """The first events, of which `Started` tells whose the ids are of all."""
    if ids == "told":
        return events
    place = [type(event) for event in events].index(Started)
    started = msgspec.structs.replace(events[place], token_ids=ids)
    return (*events[:place], started, *events[place + 1 :])


def _refusal(face: ClientCodec, reply: Reply) -> GatewayError:
    """An error status. A key of ours that is refused is nothing the client could mend."""
    if reply.status in (401, 403):
        return BackendFailed("The backend refused the gateway's key.", code="upstream_unauthorized")
    return face.error(reply)


def _key(options: RemoteOptions) -> str:
    if options.api_key_env is None:
        return ""
    key = os.environ.get(options.api_key_env, "").strip()
    if not key:
        raise ValueError(f"the environment variable {options.api_key_env} is not set")
    return key


def _transport(options: RemoteOptions, key: str) -> Transport:
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
