"""The serving loop of the thread that owns an engine: messages in from an inbox, one step, outputs out.

An envelope is (connection, message); the message None reports that the connection was lost. The same loop serves the
engine process, whose inbox is filled by the socket server, and the in-process engine, whose inbox is filled directly.
Messages are handled between steps. Pings alone are also answered within a step, before each layer of the model, so that
a long step is not taken for a hung engine.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.native.engine.attention.progress import on_progress
from backends.native.protocol.messages import FromEngine, Ping, Pong, Submit, ToEngine

if TYPE_CHECKING:  # it imports torch, and this module is imported before a process listens on its socket
    from backends.native.engine.steps import Steps

Envelope = tuple[int, ToEngine | None]
Inbox = SimpleQueue[Envelope]
Send = Callable[[int, FromEngine], None]

_NO_CONNECTION = -1


def serve(engine: Steps, inbox: Inbox, send: Send, stopping: Event) -> None:
    """Step `engine` while it is busy, until `stopping` is set; the step in progress is finished and its outputs sent.

    Args:
        engine: owned by the calling thread.
        inbox: envelopes from the workers.
        send: sends a message to a connection; must not block.
        stopping: set by `stop`.
    """
    pump = _InboxPump(engine, inbox, send)
    on_progress(pump.answer_pings)
    while not stopping.is_set():
        pump.take()
        if engine.busy:
            for connection, step in engine.step().items():
                send(connection, step)


def stop(inbox: Inbox, stopping: Event) -> None:
    """Make `serve` return, even if it is waiting for messages. May be called from a signal handler."""
    stopping.set()
    # `SimpleQueue.put` is reentrant (Python's documentation), so a signal handler may interrupt another `put`. No
    # connection has this id: disconnecting it does nothing.
    inbox.put((_NO_CONNECTION, None))


class _InboxPump:
    """Passes envelopes from the inbox to the engine."""

    def __init__(self, engine: Steps, inbox: Inbox, send: Send) -> None:
        self._engine = engine
        self._inbox = inbox
        self._send = send
        self._deferred: list[Envelope] = []

    def take(self) -> None:
        """Pass on what has arrived, between two steps; wait for a message if the engine is not busy.

        The count is taken first, so that messages which keep arriving cannot delay the next step.
        """
        # Deferred messages first: they arrived before everything that is still in the inbox.
        deferred, self._deferred = self._deferred, []
        for envelope in deferred:
            self._pass_on(envelope)
        # This thread is the only consumer, so after `qsize` as many `get` calls return at once. An idle engine blocks
        # in the first `get`; `stop` wakes it by an envelope.
        for _ in range(self._inbox.qsize() if self._engine.busy else max(1, self._inbox.qsize())):
            self._pass_on(self._inbox.get())

    def answer_pings(self) -> None:
        """Pass on pings within a step, and defer other messages to the next `take`."""
        for _ in range(self._inbox.qsize()):
            # Submits and cancels change queues and blocks that the step in progress is using; a ping only reads
            # counters.
            envelope = self._inbox.get()
            if isinstance(envelope[1], Ping):
                self._pass_on(envelope)
            else:
                self._deferred.append(envelope)

    def _pass_on(self, envelope: Envelope) -> None:
        connection, message = envelope
        if message is None:
            self._engine.disconnect(connection)
        elif (answer := self._engine.handle(connection, message)) is not None:
            if isinstance(answer, Pong) and (late := self._unqueued()):
                answer = replace(answer, waiting=answer.waiting + late)
            self._send(connection, answer)

    def _unqueued(self) -> int:
        """Sequences that arrived in the present step: they wait, and the engine does not know of them."""
        return sum(isinstance(message, Submit) for _, message in self._deferred)
