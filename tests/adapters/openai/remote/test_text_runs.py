"""Runs of chunks that differ in their texts: with and without them, clients get the same bytes and events the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import Fold
from adapters.openai import ADAPTER
from adapters.openai.remote.decode_answer import StreamReader
from adapters.triton import ADAPTER as TRITON
from schemas.errors import GatewayError
from schemas.ir import Delta, Generate
from tests.adapters.openai.scenes import ROUTES, call

DIALECT = ADAPTER.dialects["openai"]
SERVER = ADAPTER.server(DIALECT)
OTHER = TRITON.server(TRITON.dialects["triton"])
CHUNK = b'{"id":"c","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]%b}'
COMPLETED = b'{"id":"c","created":1,"model":"m","choices":[{"index":0,"text":"%b","finish_reason":null}]%b}'
LAST = b'{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
TEXTS = st.sampled_from(("a", "", "two words", "\\n", 'q\\"', "é", "\u2028", "\x85", "}", "data: ", "🙂", "\\u0041"))
TAILS = st.sampled_from((b"",) * 8 + (b',"usage":null', b',"new":1'))
ODD = st.sampled_from((LAST, b"{", b'{"error":{"message":"no"}}', CHUNK % (b"\xff", b""), CHUNK % (b"\x01", b"")))


def ask(**fields: Any) -> Generate:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True} | fields
    request = SERVER.decode(ROUTES["chat"], json.dumps(body).encode(), call())
    assert isinstance(request, Generate)
    return request


def ask_other() -> Generate:
    """A request whose answer is written anew."""
    route = next(route for route in OTHER.routes if route.name == "generate_stream")
    asked = OTHER.decode(route, b'{"text_input": "Hi"}', call(model="chat"))
    assert isinstance(asked, Generate)
    return asked


def through(request: Generate, reads: list[bytes], *, runs: bool) -> tuple[bytes, Any, int]:
    """What the client gets of these reads, the answer or how it fails, and the number of events."""
    writer = (SERVER if request.origin is not None and request.origin.protocol == "openai" else OTHER).encoder(request)
    reader, fold, sent, count = StreamReader(DIALECT, request), Fold(), [], 0
    if not runs:
        reader._tries = 0
    try:
        for data in reads:
            try:
                events = reader.feed(data)
            except GatewayError:
                sent.append(writer.feed(reader.before) if reader.before else b"")
                raise
            if events:
                sent.append(writer.feed(events))
                fold.feed(events)
                count += len(events)
        return b"".join(sent), fold.completion() if fold.done else None, count
    except GatewayError as error:
        return b"".join(sent), (type(error), error.message), count


@given(data=st.data(), usage=st.booleans(), is_other=st.booleans())
def test_runs_change_nothing(data: st.DataObject, usage: bool, is_other: bool) -> None:
    form = data.draw(st.sampled_from((CHUNK, COMPLETED)))
    chunks = [form % (text.encode(), tail) for text, tail in data.draw(st.lists(st.tuples(TEXTS, TAILS), max_size=12))]
    if data.draw(st.booleans()):
        chunks.insert(data.draw(st.integers(0, len(chunks))), data.draw(ODD))
    framed = [b"data: %b\n\n" % chunk for chunk in (*chunks, LAST, b"[DONE]")]
    reads, rest = [], b"".join(framed)
    if data.draw(st.booleans()):  # whole events in a read
        cuts = data.draw(st.lists(st.integers(1, len(framed)), max_size=6))
        for size in cuts:
            reads.append(b"".join(framed[:size]))
            framed = framed[size:]
        reads.append(b"".join(framed))
    else:
        at = data.draw(st.integers(0, len(rest)))
        reads = [rest[:at], rest[at:]]
    reads = [read for read in reads if read]
    request = ask_other() if is_other else ask(stream_options={"include_usage": usage})
    with_runs, without = through(request, reads, runs=True), through(request, reads, runs=False)
    assert with_runs[:2] == without[:2]


@pytest.mark.parametrize("tail", [b"", b',"usage":null'])
def test_a_read_of_like_chunks_becomes_one_delta(tail: bytes) -> None:
    reader = StreamReader(DIALECT, ask())
    for _ in range(2):
        reader.feed(b"data: %b\n\n" % (CHUNK % (b"x", tail)))
    read = b"".join(b"data: %b\n\n" % (CHUNK % (text, tail)) for text in (b"one ", b"", b"two"))
    relayed, delta = reader.feed(read)
    assert delta == Delta(0, "one two")
    assert relayed.data == read.replace(b',"usage":null', b"")
    assert reader._choices[0].generated == 4


@pytest.mark.parametrize("form", [CHUNK, COMPLETED])
def test_another_protocol_gets_a_delta_for_each_chunk(form: bytes) -> None:
    reader = StreamReader(DIALECT, ask_other())
    reader.feed(b"data: %b\n\n" % (form % (b"x", b"")))
    read = b"".join(b"data: %b\n\n" % (form % (text, b"")) for text in (b"one ", b"", b"two"))
    assert reader._learned() is not None
    assert reader.feed(read) == (Delta(0, "one "), Delta(0, "two"))
    assert reader._choices[0].generated == 3


def test_the_same_name_elsewhere_is_not_taken_for_the_text() -> None:
    chunk = b'{"note":{"content":"x"},"choices":[{"index":0,"delta":{"content": "%b"},"finish_reason":null}]}'
    reader = StreamReader(DIALECT, ask())
    for _ in range(3):
        reader.feed(b"data: %b\n\n" % (chunk % b"x"))
    assert reader._learned() is None
    assert reader.feed(b"data: %b\n\n" % (chunk % b"y"))[-1] == Delta(0, "y")


def test_what_is_before_and_after_a_text_does_not_overlap() -> None:
    reader = StreamReader(DIALECT, ask())
    for _ in range(2):
        reader.feed(b"data: %b\n\n" % (CHUNK % (b"x", b"")))
    cut = (CHUNK % (b"", b"")).replace(b'""', b'"')  # one quote for both
    with pytest.raises(GatewayError):
        reader.feed(b"data: %b\n\n" % cut)


def test_chunks_after_the_end_of_a_choice_are_refused_in_runs_as_well() -> None:
    reads = [b"data: %b\n\n" % (CHUNK % (b"x", b""))] * 3 + [
        b"data: %b\n\n" % LAST,
        b"data: %b\n\n" % (CHUNK % (b"x", b"")),
    ]
    request = ask(n=2)
    assert through(request, reads, runs=True)[:2] == through(request, reads, runs=False)[:2]
