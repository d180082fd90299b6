"""A stream is the whole answer: what its frames say together is what `/generate` answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import fold
from schemas.ir import Events

from ..laws import batches, streams
from .scenes import ask, server
from .test_mirror import with_a_last_token

ASKED = {"details": True, "do_sample": True, "seed": 7}


def folded(stream: bytes, *, tops: bool) -> Any:
    """The frames' tokens, and what the last of them says of all."""
    frames = [json.loads(line.partition(":")[2]) for line in stream.decode().split("\n\n") if line]
    *before, last = frames
    assert all(frame["generated_text"] is None and frame["details"] is None for frame in before)
    details = last["details"] | {"tokens": [frame["token"] for frame in frames], "prefill": []}
    details.pop("input_length", None)
    if tops:  # those of a token that has none are left out of its frame
        details["top_tokens"] = [frame.get("top_tokens", []) for frame in frames]
    return {"generated_text": last["generated_text"], "details": details}


@pytest.mark.parametrize(("name", "top"), [("tgi", None), ("tgi", 2), ("tgi-0.9", None)])
@given(data=st.data(), full=st.booleans())
def test_streams(name: str, top: int | None, data: st.DataObject, full: bool) -> None:
    told = {"with_logprobs": True, "tops": top or 0, "end_token": True}
    events: Events = with_a_last_token(data.draw(streams(**told)))
    asked = ASKED | {"return_full_text": full} | ({"top_n_tokens": top} if top else {})
    writer = server(name).encoder(ask(name, asked, operation="generate_stream"))
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    whole = server(name).encode(ask(name, asked), fold(events))
    assert folded(stream, tops=top is not None) == json.loads(whole.body)
