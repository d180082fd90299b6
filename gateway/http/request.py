"""One request from its first byte to its last: read, decode, route, answer, account for.

Everything that can happen to a request happens here, and in one task: a watcher cancels it when the client leaves,
whatever it waits for, and its `finally` closes the backend's generator. The status line waits for the backend's first
event; after that a failure is written as the protocol's own error and never as a clean end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import structlog

from adapters.base import Call, Record, RecordingEncoder, Reply, Route, ServerCodec, StreamEncoder
from adapters.fold import Fold
from backends.base import check
from gateway.errors import is_failover_eligible, to_client_error
from gateway.experiments.experiment import Experiment, Outcome
from gateway.http.body import read_body
from gateway.http.disconnect import Reception
from gateway.response_store import OwnRecords
from gateway.routing.router import Plan, Target
from gateway.service import Service
from schemas.catalog import Change
from schemas.errors import GatewayError, Incomplete, Overloaded, ShuttingDown, UnsupportedFeature
from schemas.ir import Embed, Events, Finished, FinishReason, Generate, Request, Timings, Tokenize, Usage

log = structlog.get_logger()

_LARGE = 1 << 20
_END = {"type": "http.response.body", "body": b"", "more_body": False}


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """A route as mounted: whose it is, and the face that reads and writes it."""

    protocol: str
    route: Route
    face: ServerCodec


class Exchange:
    """One request. `run` answers it and does not raise, but for a cancellation that was not the client's leaving."""

    __slots__ = (
        "_began",
        "_experiment",
        "_face",
        "_first",
        "_id",
        "_outcome",
        "_parameters",
        "_plan",
        "_protocol",
        "_reasons",
        "_records",
        "_request",
        "_route",
        "_scope",
        "_send",
        "_service",
        "_status",
        "_target",
        "_total",
        "_usage",
    )

    def __init__(
        self, service: Service, operation: Operation, parameters: Mapping[str, str], scope: Any, send: Any
    ) -> None:
        self._service = service
        self._protocol = operation.protocol
        self._route = operation.route
        self._face = operation.face
        self._parameters = parameters
        self._scope = scope
        self._send = send
        self._id = service.new_id()
        self._began = monotonic()
        self._request: Request | None = None
        self._plan: Plan | None = None
        self._records: OwnRecords | None = None
        self._experiment: Experiment | None = None
        self._target: Target | None = None
        self._usage: Usage | None = None
        self._reasons: list[FinishReason] = []
        self._first = 0.0
        self._total: float | None = None  # until it is known how it ends
        self._status = 0
        self._outcome = "client_gone"

    async def run(self, receive: Any) -> None:
        """Answer."""
        self._service.metrics.began()
        try:
            await self._run(receive)
        finally:
            self._account()

    async def _run(self, receive: Any) -> None:
        try:
            headers = _headers(self._scope["headers"])
            if not self._route.open:
                self._check_key(headers)
            body = await read_body(receive, headers, self._service.limits)
            if body is None:
                return
            self._service.refresh()
            call = self._call(headers)
            if self._route.kind == "describe":
                await self._describe(call, body)
                return
            if self._service.full:
                raise Overloaded("The server is at its limit of concurrent requests.", retry_after=1.0)
            decode = self._face.decode
            if len(body) > _LARGE:
                request = await asyncio.to_thread(decode, self._route, body, call)
            else:
                request = decode(self._route, body, call)
            if isinstance(request, Change):
                await self._service.manage(request)
                await self._describe(call, body)
                return
            self._request = request
            self._plan, self._experiment = self._service.plan(request, headers)
        except Exception as error:  # whatever it is, the client hears of it in its protocol
            await self._refuse(error)
            return
        await self._watched(receive)

    def _call(self, headers: Mapping[str, str]) -> Call:
        store, said = self._service.records, self._scope.get("query_string", b"")
        self._records = store.of(headers) if store is not None else None
        query = dict(parse_qsl(said.decode("latin-1"))) if said else {}
        return Call(self._id, self._service.catalog, self._parameters, headers, query, self._records)

    def _check_key(self, headers: Mapping[str, str]) -> None:
        keys = self._service.keys
        (keys.check_admin if self._route.kind == "manage" else keys.check)(headers)

    async def _describe(self, call: Call, body: bytes) -> None:
        call = msgspec.structs.replace(call, catalog=self._service.counted_catalog())
        await self._reply(self._face.describe(self._route, call, body), "ok")

    async def _watched(self, receive: Any) -> None:
        """Answer, unless the client leaves: then this task is cancelled, and stays silent."""
        task = asyncio.current_task()
        assert task is not None
        gone = False

        def leave() -> None:
            nonlocal gone
            gone = True
            task.cancel()

        reception = Reception(receive)
        reception.watch(leave)
        try:
            await self._answer()
        except asyncio.CancelledError:
            if not gone:
                raise
            task.uncancel()
        finally:
            reception.close()

    async def _answer(self) -> None:
        """Ask the planned targets in turn, until one has begun to answer."""
        request, plan = self._request, self._plan
        assert request is not None
        assert plan is not None
        failure: Exception | None = None
        targets = self._service.preferred(plan.targets)
        if targets[0] is not plan.targets[0]:
            self._fall_back(plan.targets[0], "in_trouble")
        for target in targets:
            self._target = target
            try:
                await self._ask(request, target, patient=target is targets[-1])
                return
            except Exception as error:  # as above; nothing was written yet
                if failure is None or not isinstance(error, UnsupportedFeature):
                    failure = error  # that an entity fallen back to cannot do it is not what went wrong
                if self._first or target is targets[-1] or not is_failover_eligible(failure):
                    break
                self._fall_back(target, error.kind if isinstance(error, GatewayError) else "internal")
        assert failure is not None
        await self._refuse(failure)

    async def _ask(self, request: Request, target: Target, *, patient: bool) -> None:
        await self._service.ready(target.entity.backend, patient=patient)
        if isinstance(request, Generate):
            await self._generate(request, target)
        elif isinstance(request, Embed):
            await self._embed(request, target)
        else:
            await self._tokenize(request, target)

    def _fall_back(self, target: Target, why: str) -> None:
        self._service.metrics.fell_back(target.endpoint, target.entity.name)
        log.warning(
            "fallback.tried", request_id=self._id, model=target.endpoint, served=target.entity.name, outcome=why
        )

    async def _embed(self, request: Embed, target: Target) -> None:
        if not target.backend.capabilities.embeddings:
            raise UnsupportedFeature(f"The model '{request.model}' has no embeddings.", feature="embeddings")
        answer = await target.backend.embed(target.addressed(request))
        self._usage = answer.usage
        await self._reply(self._face.encode_embeddings(request, answer), "ok")

    async def _tokenize(self, request: Tokenize, target: Target) -> None:
        answer = await target.backend.tokenize(target.addressed(request))
        await self._reply(self._face.encode_tokens(request, answer), "ok")

    async def _generate(self, request: Generate, target: Target) -> None:
        if target.task == "embeddings":
            raise UnsupportedFeature(f"The endpoint '{request.model}' is for embeddings, not text.", feature="generate")
        check(request, target.backend.capabilities, request.model)
        assert self._plan is not None
        assert self._experiment is not None
        events = self._service.generate(request, target, self._plan, self._experiment)
        try:
            first = await anext(events, None)
            if not first:
                raise Incomplete("The backend's answer stopped before it began.")
            self._first = monotonic() - self._began
            if request.stream:
                await self._stream(request, first, events)
            else:
                await self._whole(request, first, events)
        finally:
            await events.aclose()

    async def _whole(self, request: Generate, batch: Events, events: AsyncGenerator[Events, None]) -> None:
        fold = Fold()
        fold.feed(batch)
        async for batch in events:
            fold.feed(batch)
        answer = fold.completion()
        self._reasons = [choice.reason for choice in answer.choices]
        self._usage = answer.usage
        timings = Timings(self._first, monotonic() - self._began)
        answer = msgspec.structs.replace(answer, timings=timings)
        reply = self._face.encode(request, answer)
        await self._keep(reply.record)
        await self._reply(reply, "ok")

    async def _stream(self, request: Generate, batch: Events, events: AsyncGenerator[Events, None]) -> None:
        encoder = self._face.encoder(request)
        data = await self._said(encoder, batch)
        await self._start(200, encoder.media_type, encoder.headers)
        try:
            await self._write(data)
            async for batch in events:
                await self._write(await self._said(encoder, batch))
            if self._usage is None:
                raise Incomplete("The backend's answer stopped before it was finished.")
        except asyncio.CancelledError:
            if self._service.draining:
                await self._write(encoder.fail(ShuttingDown("The server is shutting down.")))
                await self._send(_END)
            raise
        except Exception as error:  # the stream loop: too late for a status
            failure = to_client_error(error, self._id)
            self._end(failure.kind)
            await self._write(encoder.fail(failure))
            if encoder.abort_after_error:
                return  # without an end, the server cuts the connection
        await self._send(_END)

    async def _said(self, encoder: StreamEncoder, batch: Events) -> bytes:
        """The bytes that say a batch. What is to be kept is, before the client hears of the end and goes on from it."""
        data = encoder.feed(batch)
        self._note_reasons(batch)
        if isinstance(last := batch[-1], Usage):
            if isinstance(encoder, RecordingEncoder):
                await self._keep(encoder.record)
            self._usage = last
            self._end("ok")
        return data

    async def _keep(self, record: Record | None) -> None:
        if record is not None and self._records is not None:
            await self._records.keep(record)

    def _note_reasons(self, batch: Events) -> None:
        for event in batch:
            if type(event) is Finished:
                self._reasons.append(event.reason)

    async def _refuse(self, error: Exception) -> None:
        failure = to_client_error(error, self._id)
        request = self._request if isinstance(self._request, Generate) else None
        await self._reply(self._face.error(failure, request), failure.kind)

    async def _reply(self, reply: Reply, outcome: str) -> None:
        self._end(outcome)
        await self._start(reply.status, reply.media_type, reply.headers, len(reply.body))
        body = b"" if self._scope["method"] == "HEAD" else reply.body
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, status: int, media_type: str, more: Any, length: int | None = None) -> None:
        self._status = status
        headers = [(b"content-type", media_type.encode()), (b"x-request-id", self._id.encode())]
        headers += [(name.encode(), value.encode()) for name, value in more]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        if self._target is not None:
            headers.append((b"served-model-name", self._target.entity.name.encode()))
        if status in (408, 413):
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, data: bytes) -> None:
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def _end(self, outcome: str) -> float:
        """Count how it ends, once, before the client hears of it: what the client does next, asking for the figures or
        sending feedback, another worker may have to answer. Returns the seconds that it took.
        """
        if self._total is None:
            self._outcome = outcome
            self._total = monotonic() - self._began
            if self._plan is not None and self._target is not None and self._experiment is not None:
                ended = Outcome(outcome, self._first, self._total, self._usage, tuple(self._reasons))
                self._service.ended(self._id, self._experiment, self._plan, self._target, ended)
        return self._total

    def _account(self) -> None:
        service, usage = self._service, self._usage
        total = self._end(self._outcome)
        service.metrics.ended(self._protocol, self._route.name, self._outcome)
        served = self._target.entity.name if self._target is not None else None
        unit = self._plan.unit if self._plan is not None else None
        if self._plan is not None and self._target is not None:
            service.count(self._target.endpoint, total, self._outcome == "ok")
            service.metrics.served(self._target.endpoint, self._target.entity.name, self._outcome)
            if usage is not None:
                service.metrics.answered(
                    self._target.endpoint,
                    self._target.entity.name,
                    usage.prompt_tokens,
                    usage.completion_tokens,
                    self._first,
                    total,
                )
        with suppress(BrokenPipeError):
            log.info(
                "request.finished",
                request_id=self._id,
                protocol=self._protocol,
                route=self._route.name,
                status=self._status or 499,
                outcome=self._outcome,
                model=self._request.model if self._request is not None else None,
                served=served,
                unit=unit.source if unit is not None else None,
                prompt_tokens=usage.prompt_tokens if usage is not None else None,
                completion_tokens=usage.completion_tokens if usage is not None else None,
                first_event_s=round(self._first, 6),
                duration_s=round(total, 6),
            )


def _headers(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Decoded in one go: headers are many and short, and hold no NUL."""
    parts = b"\0".join([part for pair in raw for part in pair]).decode("latin-1").split("\0")
    return dict(zip(parts[::2], parts[1::2], strict=True)) if raw else {}
