"""Streamed equals non-streamed: the frames of a stream add up to the answer of `/generate`."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import fold, visible_text
from schemas.ir import Events, FinishReason
from tests.adapters.laws import batches, streams
from tests.adapters.tgi.scenes import ask, dialect, server
from tests.adapters.tgi.test_mirror import with_a_last_token

ASKED = {"details": True, "do_sample": True, "seed": 7}
SAID = {"end_token": True, "tools": True, "reasoning": True, "reasons": tuple(FinishReason)}


def folded(stream: bytes, *, tops: bool, ids_only: bool) -> Any:
    """The answer that the frames add up to: their tokens and the last one's text and details."""
    frames = [json.loads(line.partition(":")[2]) for line in stream.decode().split("\n\n") if line]
    *before, last = frames
    assert all(frame["generated_text"] is None and frame["details"] is None for frame in before)
    tokens = [frame["token"] for frame in frames]
    if ids_only:  # whole answers tell nothing else of a token
        tokens = [token | {"text": None} for token in tokens]
    details = last["details"] | {"tokens": tokens, "prefill": []}
    details.pop("input_length", None)
    if tops:  # those of a token that has none are left out of its frame
        details["top_tokens"] = [frame.get("top_tokens", []) for frame in frames]
    return {"generated_text": last["generated_text"], "details": details}


def texts_of(stream: bytes) -> list[str]:
    """The visible text of each frame's token."""
    tokens = [json.loads(line.partition(":")[2])["token"] for line in stream.decode().split("\n\n") if line]
    return ["" if token["special"] else token["text"] for token in tokens]


@pytest.mark.parametrize(("name", "top"), [("tgi", None), ("tgi", 2), ("tgi-0.9", None), ("mindie", None)])
@given(data=st.data(), full=st.booleans())
def test_a_stream_adds_up_to_the_non_streamed_answer(
    name: str, top: int | None, data: st.DataObject, full: bool
) -> None:
    strategy = streams(with_logprobs=name != "mindie", tops=top or 0, **SAID)
    events: Events = with_a_last_token(data.draw(strategy))
    asked = ASKED | {"return_full_text": full} | ({"top_n_tokens": top} if top else {})
    writer = server(name).encoder(ask(name, asked, operation="generate_stream"))
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    whole = json.loads(server(name).encode(ask(name, asked), fold(events)).body)
    assert folded(stream, tops=top is not None, ids_only=dialect(name).answers.ids_only) == whole
    assert ("Who? " if full else "") + "".join(texts_of(stream)) == whole["generated_text"]


@given(data=st.data(), events=streams(**SAID).map(with_a_last_token))
def test_a_cumulative_stream_adds_up_to_the_non_streamed_answer(data: st.DataObject, events: Events) -> None:
    """MindIE's "fullTextEnabled": each frame has the text so far, the last one the whole text."""
    codec = server("mindie", full_text=True)
    writer = codec.encoder(ask("mindie", ASKED, operation="generate_stream"))
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    whole = json.loads(codec.encode(ask("mindie", ASKED), fold(events)).body)
    assert folded(stream, tops=False, ids_only=True) == whole
    texts = texts_of(stream)
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert texts[-1] == whole["generated_text"]


@pytest.mark.parametrize("name", ["tgi", "tgi-0.9", "mindie"])
@pytest.mark.parametrize("with_tokens", [False, True])
@given(data=st.data())
def test_refusals_are_text(name: str, with_tokens: bool, data: st.DataObject) -> None:
    """Refusals have no tokens, and these protocols have no field for them."""
    events: Events = data.draw(streams(with_tokens=with_tokens, refusals=True))
    writer = server(name).encoder(ask(name, ASKED, operation="generate_stream"))
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    whole = json.loads(server(name).encode(ask(name, ASKED), fold(events)).body)
    assert "".join(texts_of(stream)) == whole["generated_text"] == visible_text(fold(events).choices[0])
    assert folded(stream, tops=False, ids_only=False)["generated_text"] == whole["generated_text"]
