"""The thread that owns an engine: takes messages between steps, sends what each step gave.

A letter is (connection, message); a message of None says that the connection is lost. The same loop runs in the engine
process, where letters come over sockets, and in process, where they come from a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event
from typing import Protocol

from backends.native.messages import FromEngine, Pong, Step, ToEngine

Letter = tuple[int, ToEngine | None]
Inbox = SimpleQueue[Letter]
Send = Callable[[int, FromEngine], None]

_NOBODY = -1


class Steps(Protocol):
    """An engine: `loop.Engine` or `encoder.EncoderEngine`."""

    @property
    def busy(self) -> bool:
        """Whether `step` would do or tell anything."""
        ...

    def handle(self, connection: int, message: ToEngine) -> Pong | None:
        """Take a worker's message; the answer to a `Ping` is returned."""
        ...

    def disconnect(self, connection: int) -> None:
        """Free all that a worker asked for that is gone."""
        ...

    def step(self) -> dict[int, Step]:
        """Run one step: what each connection is told."""
        ...


def serve(engine: Steps, inbox: Inbox, send: Send, stopping: Event) -> None:
    """Run until `stopping` is set; the step in progress is finished and told."""
    while not stopping.is_set():
        _take(engine, inbox, send)
        if engine.busy:
            for connection, step in engine.step().items():
                send(connection, step)


def stop(inbox: Inbox, stopping: Event) -> None:
    """Make `serve` return, even if it waits. May be called from a signal handler."""
    stopping.set()
    inbox.put((_NOBODY, None))


def _take(engine: Steps, inbox: Inbox, send: Send) -> None:
    """Take what has arrived; wait for it if there is nothing else to do. What arrives meanwhile waits a step."""
    for _ in range(inbox.qsize() if engine.busy else max(1, inbox.qsize())):
        connection, message = inbox.get()
        if message is None:
            engine.disconnect(connection)
        elif (answer := engine.handle(connection, message)) is not None:
            send(connection, answer)
