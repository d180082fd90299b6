"""Answering one request: asks the planned targets in turn, and writes the answer, whole or as a stream.

Strategy: the status line waits for the backend's first event, in some protocols for the first bytes to write
(`StreamEncoder.status_waits`). Before the first event another target may be asked, and before the status line the error
gets a status of its own; after it a failure is written as the protocol's own error in the stream, never as a clean end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable
from time import monotonic
from typing import TypeVar

import structlog
from litestar.types import HTTPResponseBodyEvent
from msgspec.structs import replace

from adapters.base import Record, Reply, ServerCodec, StreamEncoder
from adapters.fold import Fold
from adapters.objects import Follow
from adapters.optional import record_of
from adapters.unknown_fields import ignored_header
from backends.base import ignored_fields
from backends.features import check
from gateway.config import TEXTLESS
from gateway.errors import to_client_error
from gateway.experiments.metrics import IN_TROUBLE, LOADING
from gateway.http.accounting import RequestAccount
from gateway.http.answer_headers import id_headers, status_headers
from gateway.http.client import Client, Flow
from gateway.http.read_ahead import DirectSink, read_ahead
from gateway.http.record import Stage
from gateway.http.recording import Recording
from gateway.http.replies import reply_to
from gateway.http.timeouts import until_timeout
from gateway.routing.target import Plan, Target
from gateway.storage.key_stores import KeyStores
from schemas.completion import Timings
from schemas.errors import (
    ClientDeadline,
    GatewayError,
    Incomplete,
    ShuttingDown,
    UnsupportedFeature,
    is_failover_eligible,
)
from schemas.ir import Events, Generate, Request, Usage

log = structlog.get_logger()
T = TypeVar("T")

_END: HTTPResponseBodyEvent = {"type": "http.response.body", "body": b"", "more_body": False}


class Responder:
    """Writes one answer.

    Args:
        codec: the protocol's.
        account: the request's; records target, stage, usage and outcome.
        client: gets the answer.
        head: whether the body is left out, as HEAD wants it.
    """

    __slots__ = ("_account", "_client", "_head", "_recording", "_service", "_sink", "begun", "codec", "stores")

    def __init__(self, codec: ServerCodec, account: RequestAccount, client: Client, *, head: bool) -> None:
        self.codec = codec
        self._account = account
        self._service = account.service
        self._client = client
        self._head = head
        self.stores: KeyStores | None = None
        self.begun = False
        self._recording: Recording | None = None
        self._sink: DirectSink | None = None

    async def replay(self, request: Request, plan: Plan) -> bool:
        """Send the cached answer, whether the target could answer or not; False if there is none.

        To be called before `answer`, which then has its answer kept.
        """
        target, account = plan.targets[0], self._account
        if target.cache is None:
            return False
        recording = Recording(target, request, account)
        known = await recording.known()
        if known is None:
            self._recording = recording
            return False
        account.target, account.usage, account.finish_reasons = target, known.usage, [*known.finish_reasons]
        await self.reply(Reply(known.body, media_type=known.media_type, headers=known.headers))
        return True

    async def answer(self, request: Request, plan: Plan) -> None:
        """Ask the targets in turn until one has begun to answer; of several failures, the last is sent."""
        account = self._account
        failure: Exception | None = None
        failed_at: Stage = "wait"
        account.target, account.stage, until = plan.targets[0], "wait", 0.0
        if (health := self._service.backend_health).starting:
            try:
                until = await self._in_time(health.decided(plan.targets))
            except ClientDeadline as error:
                await self.refuse(error)
                return
        for target in (targets := self._in_order(plan)):
            account.target, account.stage = target, "wait"
            try:
                await self._in_time(health.ready(target.entity.backend, until))
                account.stage = "generate"
                await self._ask(request, target)
                if self._recording is not None:
                    await self._recording.keep()
                return
            except Exception as error:  # nothing was sent yet: whatever it is, the client gets a status
                kind = error.kind if isinstance(error, GatewayError) else "internal"
                if target is plan.targets[0] and not account.gave_up:
                    account.own_failure = account.own_failure or kind
                if failure is None or not isinstance(error, UnsupportedFeature):
                    # That the next target cannot do what is asked is not why the request failed.
                    failure, failed_at = error, account.stage
                # After the first event the backend may have sampled tokens: the request is not repeated.
                if account.first_event or target is targets[-1] or not is_failover_eligible(failure):
                    break
                self._log_fallback(target, kind)
        assert failure is not None
        # The log names the stage of the failure that is sent, not of a later target that lacked a feature.
        account.stage = failed_at
        await self.refuse(failure)

    def _in_order(self, plan: Plan) -> tuple[Target, ...]:
        """The targets: the assigned one first; one that is in trouble, or still loads, goes behind the others."""
        health, assigned = self._service.backend_health, plan.targets[0]
        targets = health.preferred(plan.targets)
        if targets[0] is not assigned:
            # The experiment counts trouble as a failure of the assigned target, even if that is asked last and answers.
            self._account.own_failure = LOADING if health.is_starting(assigned.entity.backend) else IN_TROUBLE
            self._log_fallback(assigned, self._account.own_failure)
        return targets

    async def refuse(self, error: Exception) -> None:
        """Send an error with a status of its own."""
        failure = to_client_error(error, self._account.request_id)
        self._account.message = failure.message
        request = self._account.request
        await self.reply(self.codec.error(failure, request if isinstance(request, Generate) else None), failure.kind)

    async def reply(self, reply: Reply, outcome: str = "ok") -> None:
        """Send a whole answer."""
        if reply.record is not None:
            await self._keep(reply.record)
        # Stored and counted before the first byte: once the client has the answer, it may ask any worker for the stored
        # response, or send feedback.
        self._account.status = reply.status
        self._account.end(outcome)
        if self._recording is not None:
            self._recording.begin(reply.media_type, reply.headers)
            self._recording.add(reply.body)
        await self.acknowledge(reply)

    async def acknowledge(self, reply: Reply) -> None:
        """Send a reply, without counting it as the request's end: its answer may be made in the background."""
        headers = self._headers_of(reply.status, reply.media_type, reply.headers, len(reply.body))
        # RFC 9110, section 9.3.2: HEAD has no content; section 8.6: its `content-length` is that of GET.
        await self._client.answer(reply.status, headers, b"" if self._head else reply.body)

    async def pass_on(self, follow: Follow, events: AsyncIterator[bytes]) -> None:
        """Send events that are encoded already."""
        await self._start(200, follow.media_type, follow.headers)
        async for data in events:
            await self._client.write(data)
        await self._client.send(_END)

    async def _ask(self, request: Request, target: Target) -> None:
        account, codec = self._account, self.codec
        if target.filters is not None or not isinstance(request, Generate):
            given = await reply_to(request, target, codec, account)
            if isinstance(given, Reply):
                await self.reply(given)
                return
            request = given
        if target.task in TEXTLESS:
            message = f"The endpoint '{request.model}' is for {TEXTLESS[target.task]}, not text."
            raise UnsupportedFeature(message, feature="generate")
        check(request, target.backend.capabilities, request.model)
        asked = target.addressed(request)
        account.ignored = ignored_fields(asked, target.backend)
        if request.keeps_partial and not request.stream and (request.best_of or 1) <= request.n:
            # A remote that is not asked for a stream sends nothing before its end. Its events are for `Fold` then, and
            # not to be relayed.
            asked = replace(asked, stream=True, origin=None)
        observed = account.exposure is not None and not self._service.draining
        if target.whole is not None and not (request.stream or request.keeps_partial or observed or target.filters):
            batch = self._begin_answer(await self._in_time(target.whole.answer(asked)))
            await self._whole(request, batch)
            return
        events = self._events(request, asked, target, observed=observed)
        if target.filters is not None:
            events = target.filters.answer(events)
        if request.keeps_partial:
            events = until_timeout(events, request)
        # While draining no pair is begun: its work in the background could be cancelled before its end.
        if account.exposure is not None and observed:
            events = account.exposure.observe(events, request, target)
        if request.stream and (flow := self._client.flow) is not None and flow.gathers:
            events = read_ahead(events)
        try:
            first = self._begin_answer(await self._in_time(anext(events, None)))
            await (self._stream if request.stream else self._whole)(request, first, events)
        finally:
            # Also on cancellation: closing the generator is what makes the backend drop the work for this request.
            await events.aclose()

    def _events(
        self, request: Generate, asked: Generate, target: Target, *, observed: bool
    ) -> AsyncGenerator[Events, None]:
        """The backend's events, but for those that are written where they arrive."""
        # What looks at events on their way to the client gets all of them.
        looked_at = observed or target.filters is not None or request.keeps_partial or self._recording is not None
        if not request.stream or target.feeding is None or looked_at:
            return target.backend.generate(asked)
        self._sink = DirectSink(self._account, self._client)
        return target.feeding.generate_into(asked, self._sink)

    def _begin_answer(self, first: Events | None) -> Events:
        """Note that the first batch of events is there; None: the generator ended without an event."""
        if not first:
            raise Incomplete("The backend's answer stopped before it began.")
        self._account.first_event = monotonic() - self._account.began
        self._account.stage = "stream"
        return first

    def _in_time(self, first: Awaitable[T]) -> Awaitable[T]:
        """What the first batch of events is awaited by."""
        return first if self._account.time_allowed is None else self._in_time_allowed(first, self._account.time_allowed)

    async def _in_time_allowed(self, first: Awaitable[T], allowed: float) -> T:
        """The first batch of events.

        Raises:
            schemas.errors.ClientDeadline: it did not come in the time that the client allows.
        """
        try:
            async with asyncio.timeout(allowed - (monotonic() - self._account.began)):
                return await first
        except TimeoutError:
            self._account.gave_up = True
            raise ClientDeadline("No answer began in the time that the request allows.") from None

    async def _whole(
        self, request: Generate, batch: Events, events: AsyncGenerator[Events, None] | None = None
    ) -> None:
        account, fold = self._account, Fold()
        account.note_reasons(batch)
        fold.feed(batch)
        if events is not None:
            async for batch in events:
                account.note_reasons(batch)
                fold.feed(batch)
        answer = fold.completion()
        account.stage = "encode"
        account.usage = answer.usage
        # From the request's beginning: with the time spent on waiting for a backend and on targets that failed.
        timings = Timings(account.first_event, monotonic() - account.began)
        await self.reply(self.codec.encode(request, replace(answer, timings=timings)))

    async def _stream(self, request: Generate, batch: Events, events: AsyncGenerator[Events, None]) -> None:
        encoder, flow = self._new_encoder(request), self._client.flow
        data = await self._begin_stream(encoder, batch, events)
        if self._recording is not None:
            self._recording.begin(encoder.media_type, encoder.headers)
        await self._start(200, encoder.media_type, encoder.headers)
        try:
            await self._write(data)
            del data  # see `_taken`
            async for batch in events:
                data = encoder.feed(batch)
                self._account.note_batch(batch)
                if isinstance(last := batch[-1], Usage):
                    await self._complete(encoder, last)
                await self._write(data)
                del data
                if flow is not None and flow.write_paused:
                    await self._taken(flow)
            # The generator ended without an error and without usage: a truncated answer must not look complete.
            if self._account.usage is None:
                raise Incomplete("The backend's answer stopped before it was finished.")
        except asyncio.CancelledError:
            # uvicorn cancels what still runs after `drain_timeout`. The connection still works, so the client learns
            # why, unless it takes nothing: nobody waits for it then. A client that has left cancels, too; writing to
            # its closed connection does nothing.
            if self._service.draining and not (flow is not None and flow.write_paused):
                await self._write_failure(encoder, ShuttingDown("The server is shutting down."))
                await self._client.send(_END)
            raise
        except Exception as error:  # the stream loop: too late for a status
            failure = to_client_error(error, self._account.request_id)
            self._account.message = failure.message
            self._account.end(failure.kind)
            await self._write_failure(encoder, failure)
            if encoder.abort_after_error:
                return  # without an end, the server cuts the connection
        await self._client.send(_END)

    def _new_encoder(self, request: Generate) -> StreamEncoder:
        encoder = self.codec.encoder(request)
        if self._sink is not None:
            self._sink.encoder = encoder
        return encoder

    async def _write_failure(self, encoder: StreamEncoder, failure: GatewayError) -> None:
        """Write the error that ends a stream."""
        await self._write(encoder.fail(failure))

    async def _begin_stream(self, encoder: StreamEncoder, batch: Events, events: AsyncGenerator[Events, None]) -> bytes:
        """Encode what is sent with the status line. An exception here still gets a status of its own."""
        data = encoder.feed(batch)
        self._account.note_batch(batch)
        while encoder.status_waits and not data and not isinstance(batch[-1], Usage):
            following = await anext(events, None)
            if following is None:
                raise Incomplete("The backend's answer stopped before its first part.")
            batch = following
            data = encoder.feed(batch)
            self._account.note_batch(batch)
        # Usage is the last event of every complete answer; a short answer may have it here already.
        if isinstance(last := batch[-1], Usage):
            await self._complete(encoder, last)
        return data

    async def _complete(self, encoder: StreamEncoder, usage: Usage) -> None:
        """Store and count an answer whose last batch is encoded. To be called before the client gets that batch."""
        if (record := record_of(encoder)) is not None:
            await self._keep(record)
        self._account.usage = usage
        self._account.status = self._account.status or 200  # a short answer ends before its status line is sent
        self._account.end("ok")

    async def _keep(self, record: Record) -> None:
        if self.stores is not None:
            await self.stores.keep(record)

    async def _start(self, status: int, media_type: str, more: Iterable[tuple[str, str]]) -> None:
        headers = self._headers_of(status, media_type, more)
        await self._client.send({"type": "http.response.start", "status": status, "headers": headers})

    # `length` -1: a stream, whose body the server frames (RFC 9112, section 7.1: chunked).
    def _headers_of(
        self, status: int, media_type: str, more: Iterable[tuple[str, str]], length: int = -1
    ) -> list[tuple[bytes, bytes]]:
        """The headers of the answer, which begins now."""
        account = self._account
        account.status = status
        headers, ids = [(b"content-type", media_type.encode())], id_headers(self.codec, account.request_id)
        for name, value in (*ids, *more, *ignored_header(account.ignored), *status_headers(status)):
            headers.append((name.encode(), value.encode()))
        if account.cache_hit is not None:
            # RFC 9211.
            headers.append((b"cache-status", b"interlingua; hit" if account.cache_hit else b"interlingua; fwd=miss"))
        if account.quotas:
            headers += self.codec.limit_headers(account.quotas)
        if length >= 0:
            headers.append((b"content-length", b"%d" % length))
        if account.target is not None:
            headers.append((b"served-model-name", account.target.entity.name.encode()))
        self.begun = True
        return headers

    async def _write(self, data: bytes) -> None:
        # An encoder may hold text back and return nothing for a batch.
        if data:
            # `write` waits while the transport's buffer is above its high-water mark: the stage says that the client is
            # slow.
            if self._recording is not None:
                self._recording.add(data)
            stage, self._account.stage = self._account.stage, "send"
            await self._client.write(data)
            self._account.stage = stage

    async def _taken(self, flow: Flow) -> None:
        """Wait until the client has taken what is written.

        `write` would wait, too, but with the next batch at hand: for a client that reads nothing, one batch in the
        transport's buffer is enough. So nothing on the way here holds one.
        """
        stage, self._account.stage = self._account.stage, "send"
        await flow.drain()
        self._account.stage = stage

    def _log_fallback(self, target: Target, why: str) -> None:
        model, served = target.endpoint, target.entity.name
        self._service.metrics.fallbacks.add((model, served))
        log.warning("fallback.tried", request_id=self._account.request_id, model=model, served=served, outcome=why)
