"""Frames before a faulty one are not lost, and the faulty one yields no event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.openai import ADAPTER
from schemas.errors import BackendFailed, GatewayError
from schemas.ir import ChatPrompt, Delta, Events, Finished, FinishReason, Generate, Message, Origin, Relayed, Started

ASKED = b'{"model":"m","messages":[{"role":"user","content":"Hi"}],"stream":true}'
HELLO, BAD = {"index": 0, "delta": {"content": "Hello"}}, {"index": 7, "delta": {"content": "!"}}
END = {"index": 0, "delta": {}, "finish_reason": "stop"}


def frame(*choices: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"model": "m", "choices": choices}).encode()


def read(*frames: bytes, relays: bool = False) -> tuple[Events, GatewayError]:
    """The events before the error."""
    origin = Origin("openai", "openai" if relays else "another", "chat", ASKED)
    prompts = (ChatPrompt((Message("user", "Hi"),)),)
    reader = ADAPTER.client(ADAPTER.dialects["openai"]).decoder(
        Generate(id="r", model="m", prompts=prompts, raw_prompt=False, stream=True, origin=origin)
    )
    with pytest.raises(GatewayError) as caught:
        reader.feed(b"".join(frames))
    return reader.before, caught.value


@pytest.mark.parametrize("bad", [frame(BAD), frame(HELLO, BAD), b"data: {\n\n", b'data: {"error":"no"}\n\n'])
def test_the_events_before_a_faulty_frame_are_kept(bad: bytes) -> None:
    before, error = read(frame(HELLO), bad)
    assert before == (Started("m"), Delta(text="Hello"))
    assert isinstance(error, BackendFailed)


def test_a_faulty_frame_is_not_relayed() -> None:
    before, _ = read(frame(HELLO), frame(HELLO, BAD), relays=True)
    assert before == (Relayed(frame(HELLO)[6:-2]), Started("m"), Delta(text="Hello"))


def test_an_end_before_a_faulty_frame_counts() -> None:
    before, _ = read(frame(HELLO), frame(END), frame(HELLO))
    assert before[-1] == Finished(reason=FinishReason.EOS)


def test_a_faulty_first_frame_has_no_events_before_it() -> None:
    assert read(b"data: {\n\n", frame(HELLO))[0] == ()
