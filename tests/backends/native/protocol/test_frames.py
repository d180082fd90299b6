"""Frames: literal bytes, streams split anywhere, and rejected bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.native.protocol.frames import FrameError, FrameReader, encode_frame
from backends.native.protocol.messages import (
    Cancel,
    FromEngine,
    Logprobs,
    Message,
    Output,
    Ping,
    Ready,
    SamplingParams,
    Step,
    Submit,
    ToEngine,
)
from schemas.ir import FinishReason

TO_ENGINE: list[Message] = [
    Submit(7, (1, 2, 300), 20, SamplingParams(temperature=0.5, seed=2**64 - 1, logit_bias=((3, -1.5),)), priority=-2),
    Cancel(7),
    Ping(2**40),
]
FROM_ENGINE: list[Message] = [
    Ready(2048, 768, (1, 2), "float32", "cpu", "packed", 64),
    Step((Output(7, (5,), FinishReason.EOS, (Logprobs(-0.5, (5, 6), (-0.5, -1.0)),)), Output(8, error="no"))),
]


def test_a_frame_is_its_length_and_an_array() -> None:
    assert encode_frame(Cancel(5)) == b"\x09\x00\x00\x00" + b"\x92\xa6Cancel\x05"


@given(st.lists(st.integers(1, 40), min_size=1))
def test_a_stream_split_anywhere_gives_the_same_messages(cuts: list[int]) -> None:
    for messages, kind in ((TO_ENGINE, ToEngine), (FROM_ENGINE, FromEngine)):
        stream = b"".join(map(encode_frame, messages))
        reader: FrameReader[Message] = FrameReader(kind)
        read: list[Message] = []
        start = 0
        while start < len(stream):
            for cut in cuts:
                read += reader.feed(stream[start : start + cut])
                start += cut
        assert read == messages


def test_many_frames_in_one_read() -> None:
    assert FrameReader(ToEngine).feed(encode_frame(Ping(1)) * 100) == [Ping(1)] * 100


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x00\x00\x00\xc1",
        b"\x01\x00\x00\x00\x90",
        encode_frame(Step(())),
        b"\xff\xff\xff\xff",
        b"\x09\x00\x00\x00\x92\xa6Can\xa7\x9al\x01",
    ],
    ids=["no msgpack", "empty array", "message of the other direction", "too long", "a string that is no UTF-8"],
)
def test_bytes_that_are_no_message_are_rejected(data: bytes) -> None:
    with pytest.raises(FrameError):
        FrameReader(ToEngine).feed(data)
