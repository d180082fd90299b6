"""The client of one request, as the request's handler sees it.

Strategy: ASGI has a coroutine for each piece that comes or goes, and no word for a whole body that is there, for a
client that leaves or for back-pressure. Our own server's connections are clients by themselves
(`gateway.server.answer_cycle`), so nothing is wrapped or waited for on the way; any other ASGI server's are through
`AsgiClient`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from litestar.types import HTTPScope, Receive, Send

from gateway.http.accounting import RequestAccount
from gateway.http.pending_message import PendingMessage

FLOW_EXTENSION = "interlingua.flow"
"""The scope's extension whose `flow` is the connection's `Flow`."""

RawHeaders = Sequence[tuple[bytes, bytes]]


class Flow(Protocol):
    """Back-pressure of a connection. ASGI has no word for it, so the server passes it in the scope's extensions.

    Attributes:
        write_paused: whether the transport's buffer is above its high-water mark.
        gathers: whether events that come during a write are to be written together.
    """

    write_paused: bool
    gathers: bool

    async def drain(self) -> None:
        """Wait until it is below again, or the connection is lost."""
        ...


class Client(Protocol):
    """Who has sent a request.

    Attributes:
        headers: the request's as text, by name, if they are known already; None: they are to be decoded.
        account: of a request that was begun without a task (`gateway.http.direct`) and is to go on in one; None: of a
            new one.
    """

    headers: Mapping[str, str] | None
    account: RequestAccount | None

    @property
    def flow(self) -> Flow | None:
        """Back-pressure; None: it is not known."""
        ...

    @property
    def receive(self) -> Receive:
        """ASGI's, for a body in pieces."""
        ...

    @property
    def send(self) -> Send:
        """ASGI's, for what is written in pieces."""
        ...

    def take_body(self) -> bytes | None:
        """The request's body if it has come as a whole; None: it is to be received."""
        ...

    def watch(self, leave: Callable[[], object]) -> None:
        """Call `leave` once the client has left. To be called after the body was read."""
        ...

    def unwatch(self) -> None:
        """Call nothing any more."""
        ...

    async def answer(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Send a whole answer."""
        ...

    async def write(self, data: bytes) -> None:
        """Send a part of an answer that `send` has begun."""
        ...

    @property
    def at_once(self) -> Callable[[bytes], object] | None:
        """What sends such a part without a wait; None: something is to be waited for, or nobody is there."""
        ...


class AsgiClient:
    """A client behind ASGI.

    Args:
        receive, send: ASGI's.
        flow: None: it is not known.
    """

    def __init__(self, receive: Receive, send: Send, flow: Flow | None = None) -> None:
        self.receive = receive
        self.send = send
        self.flow = flow
        self.headers: Mapping[str, str] | None = None
        self.account: RequestAccount | None = None
        self._pending: PendingMessage | None = None

    @classmethod
    def of(cls, scope: HTTPScope, receive: Receive, send: Send) -> AsgiClient:
        """The client of a request."""
        extensions: Any = scope.get("extensions") or {}
        return cls(receive, send, extensions.get(FLOW_EXTENSION, {}).get("flow"))

    def take_body(self) -> bytes | None:
        """None: a body comes in pieces."""
        return None

    def watch(self, leave: Callable[[], object]) -> None:
        """Call `leave` once the client has left."""
        self._pending = PendingMessage(self.receive)
        self._pending.watch(leave)

    def unwatch(self) -> None:
        """Call nothing any more."""
        if self._pending is not None:
            self._pending.close()

    async def answer(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Send a whole answer."""
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    at_once = None

    async def write(self, data: bytes) -> None:
        """Send a part of an answer."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})


async def cancel_on_disconnect(client: Client, work: Awaitable[None]) -> None:
    """Await `work` in the present task; if the client leaves first, cancel it and return.

    Args:
        client: of the request, whose body was read.
        work: answers the request.

    Raises:
        asyncio.CancelledError: the task was cancelled by somebody else.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    # If the client has left already, `leave` runs here, and the cancellation arrives where `work` first suspends.
    client.watch(leave)
    try:
        await work
    except asyncio.CancelledError:
        # A cancellation by somebody else (shutdown) goes on. Ours ends here, and `uncancel` takes it off the task's
        # count, so that an enclosing timeout or task group does not mistake it for its own.
        if not gone:
            raise
        task.uncancel()
    finally:
        client.unwatch()
