"""Calls of gRPC: one with one request and one answer, and one with streams of both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

import grpc
from grpc import aio

from adapters.base import RpcCodec
from gateway.grpc.request import ENDING, Caller, RpcRequest, Status, messages
from gateway.mounts import Operation
from gateway.service import Service

Context: TypeAlias = aio.ServicerContext

_MOST_AT_ONCE = 256
"""Requests of a stream that are answered at the same time; the next one is read when one of them has its answer."""
_LAST_CHANCE = 0.5
"""Seconds for which a stream is read at the end of the server: for requests that are on their way."""


class Calls:
    """Answers the calls of a server.

    Args:
        service: the worker's.

    Attributes:
        tasks: gets those of all requests, which the server waits for at its end.
        ending: set once the server accepts no more requests.
        writing: the streams that wait for their client to take a message, and since when.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.tasks: set[asyncio.Task[None]] = set()
        self.ending = asyncio.Event()
        self.writing: dict[StreamCall, float] = {}

    def unary(self, operation: Operation) -> Callable[[bytes, Context], Awaitable[bytes]]:
        """What answers calls of a method with one request and one answer."""

        async def answer(body: bytes, context: Context) -> bytes:
            written: list[bytes] = []

            async def write(message: bytes) -> None:
                written.append(message)

            caller = Caller(self._service, operation, context, self.tasks, asyncio.Event())
            request = RpcRequest(caller, body, write)
            task = caller.begin(request.run())
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:  # the client has left
                caller.gone.set()
                await asyncio.wait((task,))
                raise
            context.set_trailing_metadata(request.metadata)
            if request.status is not None:
                await context.abort(*request.status, trailing_metadata=request.metadata)
            return written[0]

        return answer

    def stream(self, operation: Operation) -> Callable[[Any, Context], Awaitable[None]]:
        """What answers calls of a method with streams of requests and answers."""

        async def answer(_: Any, context: Context) -> None:
            caller = Caller(self._service, operation, context, self.tasks, asyncio.Event())
            await StreamCall(caller, self).run()

        return answer


class StreamCall:
    """One call with streams: any number of requests, each with its own stream of answers.

    Args:
        caller: who asks.
        calls: the server's.
    """

    def __init__(self, caller: Caller, calls: Calls) -> None:
        self._caller = caller
        self._calls = calls
        self._codec = cast(RpcCodec, caller.operation.codec)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._failure: Status | None = None

    async def run(self) -> None:
        """Answer all requests of the call."""
        try:
            await self._read()
            if self._running:
                await asyncio.wait(self._running)
        except asyncio.CancelledError:  # the client has left
            self._caller.gone.set()
            if self._running:
                await asyncio.wait(self._running)
            raise
        if self._failure is not None:
            await self._caller.context.abort(*self._failure)

    def cancel(self) -> None:
        """End the call, whose client takes nothing."""
        if self._task is not None:
            self._task.cancel()

    async def _read(self) -> None:
        """Begin to answer each request, until the last one or a failure of the call."""
        ending = asyncio.ensure_future(self._calls.ending.wait())
        reading = asyncio.ensure_future(self._caller.context.read())
        try:
            while self._failure is None:
                waits: set[asyncio.Future[Any]] = {*self._running}
                timeout = None
                if not ending.done():
                    waits.add(ending)
                elif not self._running:
                    timeout = _LAST_CHANCE
                if len(self._running) < _MOST_AT_ONCE:
                    waits.add(reading)
                done, _ = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if reading in done:
                    if (body := reading.result()) is aio.EOF:
                        return
                    self._begin(cast(bytes, body))
                    reading = asyncio.ensure_future(self._caller.context.read())
                elif not done:
                    self._failure = ENDING
        finally:
            ending.cancel()
            reading.cancel()

    def _begin(self, body: bytes) -> None:
        task = self._caller.begin(self._answer(body))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, body: bytes) -> None:
        request = RpcRequest(self._caller, body, self._write)
        await request.run()
        if (status := request.status) is None:
            return
        # The key is the call's, not the request's: no other request would be answered.
        if status.kind is grpc.StatusCode.UNAUTHENTICATED:
            self._failure = status
            return
        for message in messages(self._codec.stream_error(status.message, body)):
            await self._write(message)

    async def _write(self, message: bytes) -> None:
        """Send a message once those before it are sent."""
        async with self._lock:
            if self._caller.gone.is_set():
                return
            self._calls.writing[self] = self._loop.time()
            try:
                await self._caller.context.write(message)
            except aio.BaseError:  # the call has ended, which its task is about to learn
                self._caller.gone.set()
            finally:
                del self._calls.writing[self]
