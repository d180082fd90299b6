"""The remote backend: encodes a request with a client codec, sends it, and decodes the answer to events.

Strategy:
- A stream is complete if its decoder says so, whatever the socket did. Every other end is raised as an error.
- Requests are retried before the first event and never after it (`backends.remote.resilience.retry`).
- Two deadlines: one for the first event, retries included, and one that each batch of events renews.
- A connection is reused only after a complete answer; in all other cases it is closed, which cancels the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from adapters.base import TOKEN_IDS, Reply
from adapters.optional import EmbeddingCodec, RelayCodec
from backends.base import Capabilities, Feature, Health, Sink
from backends.observation import Upstream, retried
from backends.prompts import as_asked
from backends.remote.asking import Asking, Opened, Spoken, encoded, queued, without_lacking
from backends.remote.connect import Connected, Connecting, connect
from backends.remote.context.lengths import ContextLengths, Telling
from backends.remote.context.shortening import Shortening
from backends.remote.diagnosis import Diagnosis
from backends.remote.direct import DirectAsking, RemoteExchange
from backends.remote.direct_stream import Counts
from backends.remote.id_source import id_source, marked
from backends.remote.options import RemoteOptions
from backends.remote.resilience.breaker import Breaker
from backends.remote.resilience.health_check import HealthCheck
from backends.remote.resilience.retry import Retrier
from backends.transport import split_url
from backends.transport.begun import begun
from backends.transport.url import port_of
from backends.truncation import shorter_requests
from schemas.errors import (
    BackendUnavailable,
    ContextLengthExceeded,
    GatewayError,
    UnsupportedFeature,
    UnsupportedOperation,
)
from schemas.ir import ChatPrompt, Embed, Embeddings, Events, Generate, TextPrompt, Tokenize, Tokens, Usage
from schemas.left_out import left_out
from schemas.origin import Relay, RelayedAnswer

if TYPE_CHECKING:
    from backends.remote.chat_text import ChatText, EventReader
    from backends.remote.retokeniser import Retokeniser

R = TypeVar("R", Generate, Embed, Relay)


class RemoteBackend:
    """Answers with a server elsewhere.

    Args:
        name: the backend's name.
        options: a `RemoteOptions`, or its fields.
        codecs: the protocols that the server speaks. A request goes through the first one that can express it.
        features: what the codecs can express.
        health: the path of a GET for health checks.
        embeddings: the codec for embeddings, at the URL itself; None if the server has none.
        raw_text: whether the server takes text without a chat template.
        relay: the codec for requests that are sent on as they came, at the URL itself; None if there are none.
        provider: the protocol's name, for traces.
        telling: how the server tells the context lengths of its models; None if it does not.
        connecting: makes the server's clients.
        is_ready: whether the answer to a health check says that the server is ready.

    Raises:
        msgspec.ValidationError: the options are wrong.
    """

    def __init__(  # noqa: PLR0913 - a row of `backends.remote.kinds`
        self,
        name: str,
        options: RemoteOptions | Mapping[str, Any],
        *,
        codecs: Sequence[Spoken],
        features: frozenset[Feature],
        health: str,
        embeddings: EmbeddingCodec | None = None,
        relay: RelayCodec | None = None,
        raw_text: bool = True,
        provider: str = "",
        telling: Telling | None = None,
        connecting: Connecting = connect,
        is_ready: Callable[[Reply], bool] | None = None,
    ) -> None:
        self.name = name
        self._options = msgspec.convert(options, RemoteOptions)
        self._codecs = codecs
        self._encode = partial(encoded, codecs)
        self._embeddings = embeddings
        self._relay = relay
        self._health_path = health
        self._breaker = Breaker(self._options.failures)
        self._retrier = Retrier(self._options.retries, self._breaker.record_failure, partial(retried, name))
        self._provider = provider
        self._telling = telling
        self._connecting = connecting
        self._is_ready = is_ready
        self._shortening: Shortening | None = None
        self._connected: Connected | None = None
        self._asking: Asking | None = None
        self._direct: DirectAsking | None = None
        self._health_check: HealthCheck | None = None
        self._retokeniser: Retokeniser | None = None
        # Servers that take chats render them themselves.
        self._renders = Feature.CHAT not in features
        self._chat: ChatText | None = None
        self._start_error = ""
        if self._options.chat_template is not None and not self._renders:
            raise msgspec.ValidationError("the server renders chats itself - at `$.chat_template`")
        self.capabilities = Capabilities(
            features=self._options.offered(features),
            raw_text=(raw_text if self._options.raw_text is None else self._options.raw_text == "as_chat"),
            relays=frozenset() if relay is None else relay.relayed,
            embeddings=embeddings is not None,
            context_length=self._options.context_length,
            tokenize=self._options.tokenizer is not None,
        )

    async def start(self) -> None:
        """Load key, certificates and tokenizer, and start checking the server's health.

        A server that is not there is no error: it may come up later.

        Raises:
            schemas.errors.BackendUnavailable: the key, certificates or tokenizer cannot be used.
        """
        try:
            self._connected = connected = self._connecting(self.name, self._options)
            parts = split_url(self._options.url)
            upstream = Upstream(self.name, self._provider, parts.hostname or "", port_of(parts))
            # Embeddings and relayed requests go through the first protocol, so its codec reads their errors.
            codec, timeouts = self._codecs[0].codec, self._options.timeouts
            self._asking = Asking(connected.requests, upstream, self._breaker, codec, timeouts.idle)
            if self._options.tokenizer is not None:
                # Imported where a backend has one: 10 MB of memory.
                from backends.remote.retokeniser import Retokeniser

                # A tokenizer file has megabytes of JSON: in a thread, so that the event loop goes on.
                self._retokeniser = await asyncio.to_thread(Retokeniser, self._options.tokenizer)
            if self._renders:
                await self._load_template()
            lengths = ContextLengths(connected.checks, self._options.context_length, self._telling)
            self._shortening = Shortening(lengths, self._retokeniser, self._chat)
            if self._retokeniser is None and self._chat is None and self._options.raw_text != "as_chat":
                counts = Counts(self._breaker, self._retrier.budget, connected.redact)
                self._direct = DirectAsking.of(connected.requests, self._codecs, upstream, timeouts, counts)
        except (ValueError, OSError) as error:
            self._start_error = f"backends.{self.name}: {error}"
            raise BackendUnavailable(self._start_error) from None
        diagnosis, learn = Diagnosis(self._options, connected.proxy), partial(self._learn_lengths, lengths)
        checked = self.name, connected.checks, self._health_path, self._breaker, diagnosis
        self._health_check = HealthCheck(*checked, is_ready=self._is_ready, reached=learn)
        # The first check is awaited, so `healthy` has a result once `start` returns.
        await self._health_check.start(self._options.health_interval)

    async def aclose(self) -> None:
        """Stop the health checks and close all connections. Idempotent."""
        if self._health_check is not None:
            await self._health_check.aclose()
        if self._chat is not None:
            self._chat.close()
        if self._connected is not None:
            await self._connected.aclose()

    @property
    def health(self) -> Health:
        """The state after the last health check."""
        if self._start_error:
            return Health("failed", self._start_error)
        return Health("loading") if self._health_check is None else self._health_check.health

    async def healthy(self) -> Health:
        """The same; sends nothing."""
        return self.health

    async def embed(self, request: Embed) -> Embeddings:
        """Request embeddings from the server."""
        codec = self._embeddings
        if codec is None:
            raise UnsupportedFeature(f"The model '{request.model}' does not make embeddings.", feature="embeddings")
        request = self._with_remote_model(request)
        outbound = queued(codec.encode_embed(request), request)
        deadline = asyncio.get_running_loop().time() + self._options.timeouts.whole
        try:
            reply = await self._retrier.run(partial(self._started.fetch, outbound, request.model, deadline), deadline)
            self._breaker.record_success()
            # Outside of the retries: the server has done the work, and another attempt would do it again.
            return codec.decode_embeddings(request, reply)
        except GatewayError as error:
            raise self._redact(error) from None

    async def relay(self, request: Relay) -> RelayedAnswer:
        """Send a request on as it came, with the server's name of the model.

        Raises:
            schemas.errors.UnsupportedOperation: the server does not have the operation.
        """
        codec = self._relay
        assert codec is not None  # `capabilities.relays` is empty
        outbound = queued(codec.encode_relay(self._with_remote_model(request)), request)
        deadline = asyncio.get_running_loop().time() + self._options.timeouts.whole
        # A path or a model that the server does not have: servers do not tell the two apart in one settings.
        absent = UnsupportedOperation(
            f"The server of the model '{request.model}' has no {outbound.path} for it.",
            feature=request.origin.operation,
        )
        try:
            fetch = partial(self._started.fetch, outbound, request.model, deadline, absent)
            reply = await self._retrier.run(fetch, deadline)
            self._breaker.record_success()
        except GatewayError as error:
            raise self._redact(error) from None
        media_type = next((value for name, value in reply.headers if name.lower() == "content-type"), reply.media_type)
        return RelayedAnswer(reply.body, media_type)

    def ignored(self, request: Generate | Embed | Tokenize) -> tuple[str, ...]:
        """The unknown fields of the client's body that do not reach the server.

        Raises:
            schemas.errors.UnsupportedFeature: no codec can express the request.
        """
        if isinstance(request, Embed):
            return () if self._embeddings is None else self._embeddings.ignored(request)
        if isinstance(request, Tokenize):
            return left_out(request)  # the server is not asked
        # Chats that are rendered and texts that become chats are written anew.
        rewritten = self._chat is not None and isinstance(request.prompts[0], ChatPrompt)
        if rewritten or (self._options.raw_text == "as_chat" and isinstance(request.prompts[0], TextPrompt)):
            return left_out(request)
        return self._encode(without_lacking(request, self.capabilities))[0].ignored(request)

    async def tokenize(self, request: Tokenize) -> Tokens:
        """Tokenize with the configured tokenizer; the server's own cannot be called."""
        if self._chat is not None and isinstance(request.prompt, ChatPrompt):
            text = await self._chat.text(request.prompt, request.tools)
            request = msgspec.structs.replace(request, prompt=text)
        tokens = self._retokeniser.tokenize(request) if self._retokeniser is not None else None
        if tokens is not None:
            return tokens
        raise UnsupportedFeature(f"The model '{request.model}' does not return its tokens.", feature="tokenize")

    def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        """Send the request and yield events as they arrive.

        Closing the generator closes the connection, which is how the server learns to stop.
        """
        return self.generate_into(request, None)

    async def generate_into(self, request: Generate, sink: Sink | None) -> AsyncGenerator[Events, None]:
        """As `generate`; what comes while the generator is waited for goes to the sink, if it is text alone."""
        opened, reader = await self._begun(request)
        stream, ended = opened.stream, isinstance(opened.events[-1], Usage)
        try:
            # 1. The first batch, which has `Started`.
            yield self._first(opened, reader)
            if sink is not None and stream is not None and reader is None and self._retokeniser is None:
                stream.feed_into(sink)
            # 2. The rest of a stream; each `read` has the idle timeout. Without a stream, the first batch was the whole
            # answer.
            while stream is not None and not ended:
                events = await stream.read()
                ended = isinstance(events[-1], Usage)
                # Text that may become a call is held back, and may be all of a batch.
                if events := reader.feed(events) if reader is not None else events:
                    yield events if self._retokeniser is None else self._retokeniser.fill(events)
            # 3. `Usage` is the last event.
            opened.complete()
        except GatewayError as error:
            raise self._redact(opened.failed(error)) from None  # the cause, in a traceback, could hold the key as well
        finally:
            opened.leave()

    def exchange(self, request: Generate) -> RemoteExchange | None:
        """An exchange without a task (`backends.direct`)."""
        if self._direct is None or request.overflow == "drop_turns":
            return None
        return self._direct.exchange(self._with_remote_model(request) if self._options.models else request)

    async def answer(self, request: Generate) -> Events:
        """Send a request that is not for a stream, and return all events of its answer."""
        opened, reader = await self._begun(request)
        try:
            events = self._first(opened, reader)
            opened.complete()
        except GatewayError as error:
            raise self._redact(opened.failed(error)) from None
        finally:
            opened.leave()
        return events

    async def _begun(self, request: Generate) -> tuple[Opened, EventReader | None]:
        """The beginning of the answer to a request as a client sent it, and what finds tool calls in its text."""
        request = without_lacking(self._with_remote_model(request), self.capabilities)
        timeouts = self._options.timeouts
        # Set before the retries, so that waiting for a connection, pauses and all attempts share one deadline.
        deadline = asyncio.get_running_loop().time() + (timeouts.first_token if request.stream else timeouts.whole)
        if (sent := begun()) is not None:
            deadline = min(deadline, sent.deadline)
        try:
            # Retries end here: once there are events, another attempt would generate a second answer.
            return await self._begin(request, deadline)
        except GatewayError as error:
            raise self._redact(error) from None

    def _first(self, opened: Opened, reader: EventReader | None) -> Events:
        """The first batch of events. It alone has `Started`, which says where the token ids come from."""
        retokeniser = self._retokeniser
        events = opened.events if reader is None else reader.feed(opened.events)
        filled = events if retokeniser is None else retokeniser.fill(events)
        # Only if the retokeniser had nothing to fill in does the server return ids where its protocol has them.
        from_server = opened.returns_ids and filled == events
        mark = opened.response.header(TOKEN_IDS)
        return marked(filled, id_source(mark, from_server=from_server, retokenised=retokeniser is not None))

    async def _begin(self, request: Generate, deadline: float) -> tuple[Opened, EventReader | None]:
        """The beginning of the answer.

        A conversation that may be shortened is: to the model's context length, if that is known, and then turn by turn,
        as long as the server says that it is too long.
        """
        refusal, sent = None, b""
        # Most requests have one form, which most servers take as it is: nothing is awaited for these.
        forms: Iterable[Generate] = (request,)
        if request.overflow == "drop_turns" and self._shortening is not None:
            forms = shorter_requests(await self._shortening.fitting(request))
        as_it_is = self._chat is None and self._options.raw_text != "as_chat"
        for form in forms:
            taken = form if as_it_is else await self._as_taken(form)
            codec, outbound = self._encode(taken)  # once: all attempts send the same bytes
            if outbound.body == sent:
                break  # a body that is relayed does not get shorter
            outbound, sent = queued(outbound, taken), outbound.body
            try:
                open = partial(self._started.open, codec, taken, outbound, deadline)
                opened = await self._retrier.run(open, deadline)
            except ContextLengthExceeded as error:
                refusal = error
                continue
            # No reader where the server parses its answers, or where they are text and nothing else.
            return opened, self._chat.reader(request, taken) if self._chat is not None else None
        assert refusal is not None
        raise refusal

    async def _learn_lengths(self, lengths: ContextLengths, checked: Reply) -> None:
        """Note the context lengths that the server reports, for listings."""
        known = await lengths.listed(self._health_path, checked)
        known = known | {ours: known[theirs] for ours, theirs in self._options.models.items() if theirs in known}
        if known != self.capabilities.context_lengths:
            self.capabilities = msgspec.structs.replace(self.capabilities, context_lengths=known)

    async def _load_template(self) -> None:
        """Load the chat template of a server of raw text, if there is one."""
        options = self._options
        if options.chat_template is None and options.tokenizer is None:
            return
        from backends.remote.chat_text import load_chat_text

        self._chat = await asyncio.to_thread(load_chat_text, options.chat_template, options.tokenizer)
        if self._chat is not None:
            found, offered = self._chat.features, options.features
            features = self.capabilities.features | (found if offered is None else found & offered)
            self.capabilities = msgspec.structs.replace(self.capabilities, features=features)

    async def _as_taken(self, request: Generate) -> Generate:
        """The request in the form that the server takes: chats as text, or a text as a chat."""
        if self._chat is not None:
            return await self._chat.rendered(request)
        if self._options.raw_text != "as_chat" or not request.raw_prompt:
            return request
        prompts = as_asked(msgspec.structs.replace(request, raw_prompt=False))
        if prompts == request.prompts:
            return request
        # Without its origin: the body of a completion is not to be relayed as that of a chat.
        return msgspec.structs.replace(request, raw_prompt=False, prompts=prompts, origin=None)

    def _with_remote_model(self, request: R) -> R:
        model = self._options.models.get(request.model)
        if model is None:
            return request
        given = {"model_given": True} if isinstance(request, Generate) else {}
        return msgspec.structs.replace(request, model=model, **given)

    @property
    def _started(self) -> Asking:
        if self._asking is None:
            raise BackendUnavailable("The backend was not started.")
        return self._asking

    def _redact(self, error: GatewayError) -> GatewayError:
        return error if self._connected is None else self._connected.redact(error)
