"""A stream is the whole answer: what its frames say together is what `/generate` answers."""

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
    """The frames' tokens, and what the last of them says of all."""
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
    """What each frame's token says."""
    tokens = [json.loads(line.partition(":")[2])["token"] for line in stream.decode().split("\n\n") if line]
    return ["" if token["special"] else token["text"] for token in tokens]


@pytest.mark.parametrize(("name", "top"), [("tgi", None), ("tgi", 2), ("tgi-0.9", None), ("mindie", None)])
@given(data=st.data(), full=st.booleans())
def test_streams(name: str, top: int | None, data: st.DataObject, full: bool) -> None:
    said = streams(with_logprobs=name != "mindie", tops=top or 0, **SAID)
    events: Events = with_a_last_token(data.draw(said))
    asked = ASKED | {"return_full_text": full} | ({"top_n_tokens": top} if top else {})
    writer = server(name).encoder(ask(name, asked, operation="generate_stream"))
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    whole = json.loads(server(name).encode(ask(name, asked), fold(events)).body)
    assert folded(stream, tops=top is not None, ids_only=dialect(name).answers.ids_only) == whole
    assert ("Who? " if full else "") + "".join(texts_of(stream)) == whole["generated_text"]


@given(data=st.data(), events=streams(**SAID).map(with_a_last_token))
def test_cumulative_streams(data: st.DataObject, events: Events) -> None:
    """MindIE's "fullTextEnabled": each frame tells all that was said, the last one the whole text."""
    told = server("mindie", full_text=True)
    writer = told.encoder(ask("mindie", ASKED, operation="generate_stream"))
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    whole = json.loads(told.encode(ask("mindie", ASKED), fold(events)).body)
    assert folded(stream, tops=False, ids_only=True) == whole
    texts = texts_of(stream)
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert texts[-1] == whole["generated_text"]


@pytest.mark.parametrize("name", ["tgi", "tgi-0.9", "mindie"])
@pytest.mark.parametrize("told", [False, True])
@given(data=st.data())
def test_refusals_are_text(name: str, told: bool, data: st.DataObject) -> None:
    """Nobody tells their tokens, and these protocols have no other words for them."""
    events: Events = data.draw(streams(told=told, refusals=True))
    writer = server(name).encoder(ask(name, ASKED, operation="generate_stream"))
    stream = b"".join(writer.feed(batch) for batch in data.draw(batches(events)))
    whole = json.loads(server(name).encode(ask(name, ASKED), fold(events)).body)
    assert "".join(texts_of(stream)) == whole["generated_text"] == visible_text(fold(events).choices[0])
    assert folded(stream, tops=False, ids_only=False)["generated_text"] == whole["generated_text"]
