"""The event reader: any split of the bytes, any line ends, and the limit on an event."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.formats.sse import Event, EventReader, guard
from schemas.errors import BackendFailed
from tests.adapters.laws import splits, texts


def read(*pieces: bytes, limit: int = 1 << 20) -> list[tuple[bytes, bytes]]:
    reader = EventReader(limit)
    return [(event.type, event.data) for piece in pieces for event in reader.feed(piece)]


def data(*lines: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"message", line) for line in lines]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"", []),
        (b"data: a\n\n", data(b"a")),
        (b"data:a\n\n", data(b"a")),
        (b"data:  a\n\n", data(b" a")),  # one space is the separator's
        (b"data\n\n", data(b"")),
        (b"data:\n\n", data(b"")),
        (b"data: a\ndata: b\n\n", data(b"a\nb")),
        (b"data: a\ndata:\ndata: b\n\n", data(b"a\n\nb")),
        (b"data: a\n\ndata: b\n\n", data(b"a", b"b")),
        (b"\n\n\ndata: a\n\n\n\n", data(b"a")),
        (b": ping\n\ndata: a\n: pong\ndata: b\n\n", data(b"a\nb")),
        (b":\n\n:\n\n", []),
        (b"event: x\ndata: a\n\ndata: b\n\n", [(b"x", b"a"), (b"message", b"b")]),
        (b"event: x\n\ndata: a\n\n", data(b"a")),  # an event without data is none, and its type is forgotten
        (b"id: 1\nretry: 5\nother: x\ndata: a\n\n", data(b"a")),
        (b"DATA: a\ndata : b\n\n", []),  # names are compared as they are
        (b"data: a: b\n\n", data(b"a: b")),
        (b"data: a", []),
        (b"data: a\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", data(b"a")),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),  # only one byte order mark is one
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", data(b"a")),  # and only at the start
        (b"\xef\xbbdata: a\n\n", []),
        ("data: \u2028\u2029\x85\x0b\x0c\x1c\n\n".encode(), data("\u2028\u2029\x85\x0b\x0c\x1c".encode())),
        (b"data: \x00\xff\n\n", data(b"\x00\xff")),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_events(stream: bytes, events: list[tuple[bytes, bytes]], end: bytes) -> None:
    assert read(stream.replace(b"\n", end)) == events


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_split_of_every_byte(end: bytes) -> None:
    stream = end.join(
        [b"\xef\xbb\xbf: hi", b"event: x", "data: é🙂".encode(), b"data: \xe2\x80\xa8", b"", b"data: b", b"", b""]
    )
    expected = [(b"x", "é🙂\n\u2028".encode()), (b"message", b"b")]
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == expected
    for at in range(len(stream) + 1):
        assert read(stream[:at], stream[at:]) == expected


def test_an_event_is_complete_with_its_last_byte() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\r") == []
    assert [event.data for event in reader.feed(b"\r")] == [b"a"]
    assert reader.feed(b"\n") == []  # the second line's, not a third line
    assert reader.feed(b"data: b\r\n") == []
    assert [event.data for event in reader.feed(b"\r")] == [b"b"]
    assert reader.pending == b""


lines = st.one_of(
    texts.map(lambda text: b"data: " + text.replace("\n", "").replace("\r", "").encode()),
    st.sampled_from([b"", b"", b"data", b": ping", b"event: x", b"id: 1", b"nonsense"]),
)


@given(st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\r", b"\r\n"]))), st.data())
def test_splits_do_not_matter(stream: list[tuple[bytes, bytes]], draw: st.DataObject) -> None:
    whole = b"".join(line + end for line, end in stream)
    assert read(*draw.draw(splits(whole)), b"") == read(whole)


@given(st.lists(lines), st.sampled_from([b"\n", b"\r", b"\r\n"]))
def test_line_ends_do_not_matter(stream: list[bytes], end: bytes) -> None:
    assert read(*(line + end for line in stream)) == read(*(line + b"\n" for line in stream))


@given(st.binary(), st.data())
def test_any_bytes_can_be_read(stream: bytes, draw: st.DataObject) -> None:
    assert read(*draw.draw(splits(stream))) == read(stream)


@pytest.mark.parametrize(
    ("stream", "pending"),
    [
        (b"", b""),
        (b"data: a\n\n", b""),
        (b"data: a\n\n\n", b""),
        (b"data: a\r\n\r", b""),
        (b"data: a", b"data: a"),
        (b"data: a\n", b"a"),
        (b"data: a\ndata: b", b"a\ndata: b"),
        (b"da", b"da"),
        (b"\xef\xbb", b"\xef\xbb"),
    ],
)
def test_the_bytes_of_an_incomplete_event_are_pending(stream: bytes, pending: bytes) -> None:
    reader = EventReader()
    reader.feed(stream)
    assert reader.pending == pending


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: " + b"x" * 200],
        [b"data: " + b"x" * 200 + b"\n\n"],
        [b"x"] * 200,
        [b"data: x\n"] * 200,
        [b"data:\n"] * 200,
        [b": " + b"x" * 200],
    ],
)
def test_large_events_are_refused(pieces: list[bytes]) -> None:
    with pytest.raises(BackendFailed) as error:
        read(*pieces, limit=100)
    assert error.value.code == "upstream_malformed"


def test_the_limit_is_for_one_event_and_not_for_the_stream() -> None:
    assert len(read(*[b"data: " + b"x" * 90 + b"\n\n"] * 100, limit=100)) == 100
    assert len(read(b": ping\n" * 1000 + b"data: x\n\n", limit=100)) == 1
    assert read(b"data: " + b"x" * 94, b"\n\n", limit=100) == data(b"x" * 94)


@given(st.text() | texts)
def test_guarded_json_has_the_same_value_on_one_line(text: str) -> None:
    guarded = guard(json.dumps(text, ensure_ascii=False).encode())
    assert json.loads(guarded) == text
    assert len(guarded.decode().splitlines()) == 1


def test_the_guard_escapes_nothing_else() -> None:
    assert (
        guard('"é漢🙂 \u0085\u2028\u2029\u2027\u202a"'.encode()) == '"é漢🙂 \\u0085\\u2028\\u2029\u2027\u202a"'.encode()
    )


def test_repr() -> None:
    assert repr(Event(b"a")) == "Event(b'a', b'message')"
