"""A stream is the whole answer: texts, counts and log-probabilities add up to what `generate` answers."""

from __future__ import annotations

import functools
import json
import operator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import fold
from schemas.ir import Generate

from ..laws import batches, streams
from .cases import SERVERS, decode

PIECES = ("text_output", "num_output_tokens", "logprobs")
RETURNED = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")


def asked(*, stream: bool, **fields: Any) -> Generate:
    """`generate` has one choice only; `generate_stream` answers whole where `stream` is false."""
    fields = (
        {"text_input": "Once", "id": "7", "stream": stream} | {f"return_{name}": True for name in RETURNED} | fields
    )
    return decode(json.dumps(fields), "generate_stream")


def values(frame: str) -> dict[str, Any]:
    """A frame's members, of which there is one for every choice, as lists."""
    told = {
        name: value if isinstance(value, list) else [value] for name, value in json.loads(frame[len("data:") :]).items()
    }
    return told | {"logprobs": [json.loads(text) for text in told["logprobs"]]}


def folded(stream: bytes) -> dict[str, Any]:
    """What all frames say together: some members are pieces, the others are as the last frame has them."""
    frames = [values(frame) for frame in stream.decode().split("\n\n") if frame]
    answer = dict(frames[-1])
    for name in PIECES:
        told = zip(*(frame[name] for frame in frames), strict=True)
        answer[name] = [functools.reduce(operator.add, pieces) for pieces in told]
    return answer


@given(data=st.data(), tops=st.integers(0, 2))
def test_streams(data: st.DataObject, tops: int) -> None:
    told = data.draw(streams(choices=3, with_logprobs=True, tops=tops, end_token=True, model="mymodel"))
    n = len(fold(told).choices)
    writer = SERVERS["triton"].encoder(asked(stream=True, n=n, logprobs=tops))
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(told)))
    whole = SERVERS["triton"].encode(asked(stream=False, n=n, logprobs=tops), fold(told)).body.decode()
    assert folded(stream) == values(whole.strip())
