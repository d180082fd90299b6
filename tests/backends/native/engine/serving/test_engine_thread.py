"""The serving loop: messages between steps, pings within them, lost connections and the stop."""

from __future__ import annotations

from contextlib import ExitStack
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import pytest

from backends.native.engine.attention.interface import text_part
from backends.native.engine.attention.progress import report_progress
from backends.native.engine.serving.engine_thread import Inbox, serve, stop
from backends.native.protocol.messages import Cancel, FromEngine, Output, Ping, Pong, Step, Submit, ToEngine
from tests.backends.native.engine.tiny import cache_runner, packed_runner, prompt, tiny

pytestmark = pytest.mark.torch


class Recorder:
    """An engine that records its calls, and is busy for as many steps as it has unanswered submits."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.pending: list[tuple[int, int]] = []
        self.during_step: list[tuple[int, ToEngine | None]] = []
        self.inbox: Inbox = SimpleQueue()

    @property
    def busy(self) -> bool:
        return bool(self.pending)

    def handle(self, connection: int, message: ToEngine) -> Pong | None:
        self.calls.append((connection, message))
        if isinstance(message, Submit):
            self.pending.append((connection, message.seq))
        return Pong(message.token) if isinstance(message, Ping) else None

    def disconnect(self, connection: int) -> None:
        self.calls.append(("disconnect", connection))
        self.pending = [each for each in self.pending if each[0] != connection]

    def step(self) -> dict[int, Step]:
        self.calls.append("step")
        for envelope in self.during_step:
            self.inbox.put(envelope)
        self.during_step = []
        report_progress()
        self.calls.append("step ends")
        connection, seq = self.pending.pop(0)
        return {connection: Step((Output(seq),))}


def serve_until_idle(engine: Recorder) -> list[tuple[int, FromEngine]]:
    """What `serve` sends until the engine has nothing left to do."""
    sent: list[tuple[int, FromEngine]] = []
    stopping = Event()

    def send(connection: int, message: FromEngine) -> None:
        sent.append((connection, message))
        if not engine.busy and isinstance(message, Step):
            stop(engine.inbox, stopping)

    serve(engine, engine.inbox, send, stopping)
    return sent


SUBMIT, CANCEL = Submit(0, (5,), 1), Cancel(9)


def test_messages_are_handled_in_order_before_the_step_and_outputs_go_to_their_connection() -> None:
    engine = Recorder()
    for envelope in ((1, SUBMIT), (2, SUBMIT), (1, CANCEL)):
        engine.inbox.put(envelope)
    assert serve_until_idle(engine) == [(1, Step((Output(0),))), (2, Step((Output(0),)))]
    assert engine.calls[:4] == [(1, SUBMIT), (2, SUBMIT), (1, CANCEL), "step"]


def test_within_a_step_only_pings_are_answered_and_the_rest_waits_for_its_end() -> None:
    engine = Recorder()
    engine.inbox.put((1, SUBMIT))
    engine.inbox.put((2, SUBMIT))
    engine.during_step = [(1, CANCEL), (3, Ping(7)), (2, CANCEL)]
    sent = serve_until_idle(engine)
    assert sent[0] == (3, Pong(7))
    assert engine.calls[2:7] == ["step", (3, Ping(7)), "step ends", (1, CANCEL), (2, CANCEL)]


def test_what_arrives_within_a_step_is_waiting() -> None:
    engine = Recorder()
    engine.inbox.put((1, SUBMIT))
    engine.during_step = [(3, Ping(7)), (1, SUBMIT), (2, SUBMIT), (1, CANCEL), (3, Ping(8))]
    sent = serve_until_idle(engine)
    assert sent[:2] == [(3, Pong(7)), (3, Pong(8, waiting=2))]
    assert engine.calls[1:4] == ["step", (3, Ping(7)), (3, Ping(8))]


def test_a_lost_connection_is_reported_to_the_engine() -> None:
    engine = Recorder()
    for envelope in ((1, SUBMIT), (2, SUBMIT), (1, None)):
        engine.inbox.put(envelope)
    assert serve_until_idle(engine) == [(2, Step((Output(0),)))]
    assert ("disconnect", 1) in engine.calls


def test_stop_ends_a_loop_that_waits_for_messages() -> None:
    engine, stopping = Recorder(), Event()
    thread = Thread(target=serve, args=(engine, engine.inbox, lambda *_: None, stopping))
    thread.start()
    stop(engine.inbox, stopping)
    thread.join(30)
    assert not thread.is_alive()
    assert "step" not in engine.calls


@pytest.mark.parametrize(
    ("make", "family"), [(packed_runner, "llama"), (cache_runner, "llama"), (cache_runner, "lfm2")]
)
def test_pings_are_answered_in_the_middle_of_a_step(make: Any, family: str) -> None:
    runner = make(family)
    inbox: Inbox = SimpleQueue()
    sent: list[FromEngine] = []
    stopping = Event()

    def send(connection: int, message: FromEngine) -> None:
        sent.append(message)
        if len([step for step in sent if isinstance(step, Step)]) == 2:
            stop(inbox, stopping)

    def ping(*_: Any) -> None:
        inbox.put((0, Ping(7)))
        inbox.put((0, Submit(1, prompt(3, 2), 1)))

    def listen(*_: Any) -> None:
        sent_within_step.extend(sent)
        hook.remove()

    sent_within_step: list[FromEngine] = []
    first, second = text_part(runner._model).layers
    with ExitStack() as hooks:
        hook = first.register_forward_hook(ping)
        hooks.callback(second.register_forward_hook(listen).remove)
        inbox.put((0, Submit(0, prompt(20, 1), 1)))
        serve(tiny(runner).engine, inbox, send, stopping)
    assert isinstance(sent_within_step[0], Pong)
    assert (sent_within_step[0].token, sent_within_step[0].running) == (7, 1)
    outputs = [output for step in sent if isinstance(step, Step) for output in step.outputs]
    assert [(output.seq, output.reason is not None) for output in outputs] == [(0, True), (1, True)], "after the step"
