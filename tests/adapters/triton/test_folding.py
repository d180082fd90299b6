"""Streamed equals non-streamed: texts, counts and log-probabilities add up to the answer of `generate`."""

from __future__ import annotations

import functools
import json
import operator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.dialect import with_options
from adapters.fold import fold, visible_text
from adapters.triton import ADAPTER
from adapters.triton.server import TritonServer
from schemas.ir import Events, FinishReason, Generate
from tests.adapters.laws import batches, streams
from tests.adapters.triton.cases import SERVERS, decode

PIECES = ("text_output", "num_output_tokens", "logprobs")
RETURNED = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
SAID = {"tools": True, "reasoning": True, "refusals": True, "reasons": tuple(FinishReason), "model": "mymodel"}
CUMULATIVE = TritonServer(with_options(ADAPTER.dialects["mindie-triton"], {"full_text": True}))


def asked(*, stream: bool, **fields: Any) -> Generate:
    """A request of `generate_stream`, which may have several choices, with one response where `stream` is false."""
    fields = (
        {"text_input": "Once", "id": "7", "stream": stream} | {f"return_{name}": True for name in RETURNED} | fields
    )
    return decode(json.dumps(fields), "generate_stream")


def frames(stream: bytes) -> list[dict[str, Any]]:
    """The JSON of a stream's events."""
    return [json.loads(frame.removeprefix("data:")) for frame in stream.decode().split("\n\n") if frame]


def values(frame: dict[str, Any]) -> dict[str, Any]:
    """A frame's members as lists with one element per choice."""
    members = {name: value if isinstance(value, list) else [value] for name, value in frame.items()}
    return members | {"logprobs": [json.loads(text) for text in members["logprobs"]]}


def folded(stream: bytes) -> dict[str, Any]:
    """The answer that the frames add up to: some members are pieces, the others are those of the last frame."""
    parts = [values(frame) for frame in frames(stream)]
    answer = dict(parts[-1])
    for name in PIECES:
        pieces = zip(*(frame[name] for frame in parts), strict=True)
        answer[name] = [functools.reduce(operator.add, of_one) for of_one in pieces]
    return answer


@given(data=st.data(), tops=st.integers(0, 2))
def test_a_stream_adds_up_to_the_non_streamed_answer(data: st.DataObject, tops: int) -> None:
    events = data.draw(streams(choices=3, with_logprobs=True, tops=tops, end_token=True, **SAID))
    n = len(fold(events).choices)
    writer = SERVERS["triton"].encoder(asked(stream=True, n=n, logprobs=tops))
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    (whole,) = frames(SERVERS["triton"].encode(asked(stream=False, n=n, logprobs=tops), fold(events)).body)
    assert folded(stream) == values(whole)
    assert values(whole)["text_output"] == [visible_text(choice) for choice in fold(events).choices]


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("cumulative", [False, True])
@given(data=st.data(), events=streams(end_token=True, **SAID))
def test_a_stream_of_mindie_adds_up_to_the_non_streamed_answer(
    details: bool, cumulative: bool, data: st.DataObject, events: Events
) -> None:
    """Texts concatenate, unless each frame has the text so far ("fullTextEnabled"); the last details are complete."""
    server = CUMULATIVE if cumulative else SERVERS["mindie-triton"]
    body = json.dumps({"id": "7", "text_input": "Once", "parameters": {"details": details}})
    writer = server.encoder(decode(body, "generate_stream", dialect="mindie-triton"))
    stream = frames(b"".join(writer.feed(batch) for batch in data.draw(batches(events))))
    whole = json.loads(server.encode(decode(body, dialect="mindie-triton"), fold(events)).body)
    texts = [frame["text_output"] for frame in stream]
    if cumulative:
        assert all(after.startswith(before) for before, after in pairwise(texts))
    assert stream[-1] | {"text_output": texts[-1] if cumulative else "".join(texts)} == whole
    assert whole["text_output"] == visible_text(fold(events).choices[0])
    if details:
        assert not any("finish_reason" in frame["details"] for frame in stream[:-1])
        counts = [frame["details"]["generated_tokens"] for frame in stream]
        assert counts == sorted(counts)
