"""Runs of texts: written without being decoded, they are the bytes that their deltas would be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.optional import RunEncoder
from schemas.ir import Delta, Events, Finished, FinishReason, Generate, Started, ToolDelta, Usage
from tests.adapters.test_plain_requests import DIALECTS, USUAL, server

ENDS: dict[str, Events] = {
    "text": (Delta(text="a"),),
    "tokens": (Delta(text="a"), Delta(reasoning="b")),
    "call": (Delta(text="a"), Delta(tool_calls=(ToolDelta(0, "x", "f", "{"),))),
    "refusal": (Delta(text="a"), Delta(refusal="no")),
    "reasoning": (Delta(reasoning="a"),),
    "nothing": (),
}
LITERAL = st.text(st.sampled_from("ab Z0.,:{}[]</'\x7f\ufeffdéß漢字🙂👩\u200d"), min_size=1, max_size=8)
"""Texts that stand in a JSON string as they are, and that all clients read as one line."""


def asked(name: str, dialect: str) -> tuple[Any, Generate]:
    """A codec, and a request for a stream."""
    codec, route, call = server(name, dialect)
    body = USUAL[name] if name in ("tgi", "triton") else USUAL[name] | {"stream": True}
    return codec, codec.decode(route, json.dumps(body).encode(), call)


@pytest.mark.parametrize(("name", "dialect"), DIALECTS)
@given(
    before=st.sampled_from([*ENDS]),
    runs=st.lists(st.lists(LITERAL, min_size=1, max_size=4), min_size=1, max_size=3),
    counted=st.sampled_from((None, 5)),
)
def test_they_are_written_as_their_deltas(
    name: str, dialect: str, before: str, runs: list[list[str]], counted: int | None
) -> None:
    codec, request = asked(name, dialect)
    encoders = codec.encoder(request), codec.encoder(request)
    assert isinstance(encoders[0], RunEncoder)
    begin = (Started("m", counted), *ENDS[before])
    end = (Delta(text="z"), Finished(reason=FinishReason.EOS), Usage(5, 9))
    written = [[each.feed(begin)] for each in encoders]
    for run in runs:
        writer = encoders[0].run_writer(0)
        deltas, texts = tuple(Delta(text=text) for text in run), [text.encode() for text in run]
        if isinstance(writer, tuple):
            written[0].append(b"".join(writer[0] + text + writer[1] for text in texts))
        else:
            written[0].append(encoders[0].feed(deltas) if writer is None else writer(texts))
        written[1].append(encoders[1].feed(deltas))
    for each, encoder in zip(written, encoders, strict=True):
        each.append(encoder.feed(end))
    assert written[0] == written[1]


@pytest.mark.parametrize(("name", "dialect"), DIALECTS)
def test_a_text_is_followed_by_runs(name: str, dialect: str) -> None:
    codec, request = asked(name, dialect)
    encoder = codec.encoder(request)
    encoder.feed((Started("m"), Delta(text="a")))
    assert encoder.run_writer(0) is not None
