"""One request of a call, in ASGI's words: what `RequestHandler` reads and writes becomes messages of gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import grpc
from grpc import aio
from litestar.types import HTTPScope

from gateway.http.client import AsgiClient
from gateway.http.request import RequestHandler
from gateway.http.timeouts import TIMEOUT_HEADER
from gateway.mounts import Operation
from gateway.service import Service

_PREFIX = 5
"""Bytes in front of a framed message: a flag, and the length."""
_SHORTEST = 0.001
"""Seconds: the time that a call allows whose deadline is past, which is about to be cancelled."""


class Status(NamedTuple):
    """The status of a call without an answer, and the text for the client."""

    kind: grpc.StatusCode
    message: str


ENDING = Status(grpc.StatusCode.UNAVAILABLE, "The server is shutting down.")
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class _Flow:
    """How answers flow: `send` waits until a message is written, and a message costs as much as several tokens."""

    write_paused = False
    gathers = True

    async def drain(self) -> None:
        """Nothing waits."""


_FLOW = _Flow()


@dataclass(slots=True, eq=False)
class Caller:
    """What all requests of a call have in common.

    Attributes:
        service: the worker's.
        operation: the method's.
        context: gRPC's.
        tasks: those of all requests, which the server waits for at its end.
        gone: set once the call has ended without us: the client has cancelled it, or its deadline is past.
    """

    service: Service
    operation: Operation
    context: aio.ServicerContext
    tasks: set[asyncio.Task[None]]
    gone: asyncio.Event

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Answer a request in a task of its own.

        The call's task is cancelled when the client leaves, maybe in the middle of a write; a request ends in order.
        """
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def scope(self) -> HTTPScope:
        """ASGI's description of a request."""
        path, context = self.operation.route.path, self.context
        headers = [(name.encode(), _bytes(value)) for name, value in context.invocation_metadata() or ()]
        if (remaining := context.time_remaining()) is not None:
            headers = [header for header in headers if header[0].decode() != TIMEOUT_HEADER]
            headers.append((TIMEOUT_HEADER.encode(), b"%f" % max(remaining, _SHORTEST)))
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "scheme": "grpc",
            "headers": headers,
            "client": _address(context.peer()),
            "server": None,
            "extensions": {},
        }
        return cast(HTTPScope, scope)


class RpcRequest:
    """One request and its answer.

    Args:
        caller: who asks.
        body: the request, one message.
        write: sends a message of the answer.

    Attributes:
        status: of the answer; None: it is complete.
        metadata: the headers of the answer.
    """

    def __init__(self, caller: Caller, body: bytes, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._caller = caller
        self._body: bytes | None = body
        self._write = write
        self.status: Status | None = None
        self.metadata: tuple[tuple[str, str], ...] = ()

    async def run(self) -> None:
        """Answer the request."""
        caller = self._caller
        # This request counts itself, so `Service.full` compares with `>`.
        caller.service.running += 1
        try:
            client = AsgiClient(self._receive, self._send, _FLOW)
            await RequestHandler(caller.service, caller.operation, {}, caller.scope(), client).run()
        except asyncio.CancelledError:  # the server ends
            self.status = self.status or ENDING
        finally:
            caller.service.running -= 1

    async def _receive(self) -> Any:
        if (body := self._body) is not None:
            self._body = None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._caller.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: Any) -> None:
        if event["type"] == "http.response.start":
            # Names of metadata are in lower case.
            self._begin_answer({name.decode().lower(): value.decode() for name, value in event["headers"]})
            return
        if body := event["body"]:
            for message in messages(body):
                await self._write(message)

    def _begin_answer(self, headers: dict[str, str]) -> None:
        if (code := headers.get("grpc-status")) is not None:
            self.status = Status(_CODES[int(code)], headers.get("grpc-message", ""))
        # Metadata are ASCII.
        self.metadata = tuple(
            (name, value) for name, value in headers.items() if name not in _OF_HTTP and value.isascii()
        )


_OF_HTTP = frozenset(("content-type", "content-length", "grpc-status", "grpc-message", "connection"))
"""Headers of an answer that gRPC has words of its own for."""


def messages(data: bytes) -> list[bytes]:
    """The messages of framed ones."""
    found = []
    at = 0
    while at < len(data):
        start = at + _PREFIX
        at = start + int.from_bytes(data[at + 1 : start], "big")
        found.append(data[start:at])
    return found


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _address(peer: str) -> tuple[str, int] | None:
    """The client's host and port (`ipv4:127.0.0.1:4711`); None on a Unix socket."""
    host, _, port = peer.partition(":")[2].rpartition(":")
    return (host, int(port)) if port.isdigit() else None
