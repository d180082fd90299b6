"""The loop around an engine: what is heard while a step takes long."""

from __future__ import annotations

from contextlib import ExitStack
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest

from backends.native.engine.attention.interface import text_part
from backends.native.engine.serving.engine_thread import Inbox, serve, stop
from backends.native.protocol.messages import FromEngine, Ping, Pong, Step, Submit
from tests.backends.native.engine.tiny import cache_runner, packed_runner, prompt, tiny

pytestmark = pytest.mark.torch


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
        heard.extend(sent)
        asking.remove()

    heard: list[FromEngine] = []
    first, second = text_part(runner._model).layers
    with ExitStack() as hooks:
        asking = first.register_forward_hook(ping)
        hooks.callback(second.register_forward_hook(listen).remove)
        inbox.put((0, Submit(0, prompt(20, 1), 1)))
        serve(tiny(runner).engine, inbox, send, stopping)
    assert isinstance(heard[0], Pong)
    assert (heard[0].token, heard[0].running) == (7, 1)
    told = [output for step in sent if isinstance(step, Step) for output in step.outputs]
    assert [(output.seq, output.reason is not None) for output in told] == [(0, True), (1, True)], "after the step"
