"""The thread that owns an engine: takes messages between steps, sends what each step gave.

A letter is (connection, message); a message of None says that the connection is lost. The same loop runs in the engine
process, where letters come over sockets, and in process, where they come from a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event
from typing import Protocol

from backends.native.engine.attention.progress import on_progress
from backends.native.protocol.messages import FromEngine, Ping, Pong, Step, ToEngine

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
        """Take a worker's message; the answer to a `Ping`, which may come in the middle of a step, is returned."""
        ...

    def disconnect(self, connection: int) -> None:
        """Free all that a worker asked for that is gone."""
        ...

    def step(self) -> dict[int, Step]:
        """Run one step: what each connection is told."""
        ...


def serve(engine: Steps, inbox: Inbox, send: Send, stopping: Event) -> None:
    """Run until `stopping` is set; the step in progress is finished and told."""
    post = _Post(engine, inbox, send)
    on_progress(post.answer_pings)
    while not stopping.is_set():
        post.take()
        if engine.busy:
            for connection, step in engine.step().items():
                send(connection, step)


def stop(inbox: Inbox, stopping: Event) -> None:
    """Make `serve` return, even if it waits. May be called from a signal handler."""
    stopping.set()
    inbox.put((_NOBODY, None))


class _Post:
    """Brings letters to an engine: between two steps, but for pings, which can be answered within one."""

    def __init__(self, engine: Steps, inbox: Inbox, send: Send) -> None:
        self._engine = engine
        self._inbox = inbox
        self._send = send
        self._kept: list[Letter] = []

    def take(self) -> None:
        """Hand over what has arrived; wait for it if nothing else is to be done. What arrives now waits a step."""
        kept, self._kept = self._kept, []
        for letter in kept:
            self._hand_over(letter)
        for _ in range(self._inbox.qsize() if self._engine.busy else max(1, self._inbox.qsize())):
            self._hand_over(self._inbox.get())

    def answer_pings(self) -> None:
        """Hand over pings alone, and keep the rest."""
        for _ in range(self._inbox.qsize()):
            letter = self._inbox.get()
            if isinstance(letter[1], Ping):
                self._hand_over(letter)
            else:
                self._kept.append(letter)

    def _hand_over(self, letter: Letter) -> None:
        connection, message = letter
        if message is None:
            self._engine.disconnect(connection)
        elif (answer := self._engine.handle(connection, message)) is not None:
            self._send(connection, answer)
