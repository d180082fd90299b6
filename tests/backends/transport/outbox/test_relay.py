"""Reads that are runs are written as they came: by what is written in C as by what is written in Python."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.formats.text_runs import TextRuns
from backends.transport.outbox import plain
from tests.missing_tools import missing

BEGIN, END = b'data: {"choices":[{"delta":{"content":"', b'"},"index":0}]}\n\n'
RUNS = TextRuns((BEGIN, END), (BEGIN, END), 0)
TEXTS = [
    "",
    "a",
    "two words",
    "\\n",
    '"',
    "é",
    "語",
    "\u2028",
    "\u2029",
    "\u0085",
    "\u2027",
    "\x01",
    "\x7f",
    "🙂",
    "x" * 300,
]


class Clock:
    """A loop, a transport and a deadline in one."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.noted: list[float] = []
        self.at: float | None = None

    def call_soon(self, call: Any) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False


def ways() -> list[Any]:
    """The modules that have a relay."""
    name = "backends.transport.outbox.compiled"
    try:
        return [plain, importlib.import_module(name)]
    except ImportError:
        pytest.skip(missing("a C compiler"))


def numbered(texts: list[bytes]) -> bytes:
    return b"".join(b"<%d %b>" % each for each in enumerate(texts))


def relay(way: Any, writer: Any = None) -> tuple[Clock, Any, Any]:
    clock = Clock()
    box = way.Outbox(clock, way.Outboxes(clock))
    return clock, box, way.Relay(RUNS, box, clock, 30.0, clock.noted.extend, writer)


def framed(text: bytes, length: bytes | None = None, *, begin: bytes = BEGIN, end: bytes = END) -> bytes:
    data = begin + text + end
    return b"%b\r\n%b\r\n" % (length if length is not None else b"%x" % len(data), data)


CHUNKS = st.one_of(
    st.sampled_from(TEXTS).map(lambda text: framed(text.encode())),
    st.text(max_size=8).map(lambda text: framed(text.encode("utf-8", "surrogatepass"))),
    st.binary(max_size=6).map(framed),
    st.sampled_from([b"0", b"", b"1", b"F6", b"0f6", b"ffffffff", b"7fffffffffffffff", b"-1", b"47;x=y"]).map(
        lambda length: framed(b"a", length)
    ),
    st.just(framed(b"a", end=END[1:])),
    st.just(framed(b"a", begin=BEGIN[:-1])),
    st.sampled_from([b"0\r\n\r\n", b"\r\n", b"5\r\nhello\r\n"]),
)


@given(
    chunks=st.lists(CHUNKS, min_size=1, max_size=6),
    cut=st.one_of(st.none(), st.integers(0, 200)),
    more=st.binary(max_size=3),
    writer=st.sampled_from([None, (b"{", b"}"), (b"", b""), numbered]),
)
@example(chunks=[framed(b"\xc2")], cut=None, more=b"", writer=None)
@example(chunks=[framed(b"\xe2\x80")], cut=None, more=b"", writer=None)
@example(chunks=[framed(b"")], cut=None, more=b"", writer=None)
@example(chunks=[framed(b"")], cut=None, more=b"", writer=numbered)
def test_both_take_the_same_reads(chunks: list[bytes], cut: int | None, more: bytes, writer: Any) -> None:
    data = b"".join(chunks)
    data = data[:cut] + more if cut is not None else data + more
    found = []
    for way in ways():
        clock, box, each = relay(way, writer)
        taken = each(data)
        box.flush()
        assert (clock.at is not None) == taken
        found.append((taken, clock.written, box.written, each.end(), len(clock.noted), each.end()))
    assert found[0] == found[1]


@given(texts=st.lists(st.sampled_from(["a", "é", "語", "🙂", ""]), min_size=1, max_size=80))
def test_what_is_a_run_is_written_and_counted(texts: list[str]) -> None:
    chunks = [framed(text.encode()) for text in texts]
    written = [text for text in texts if text]
    for way in ways():
        clock, box, each = relay(way)
        assert all(map(each, chunks))
        assert len(clock.noted) == len(written) // plain.MOST_TIMES * plain.MOST_TIMES
        assert each.end() == len(written)
        assert clock.noted == sorted(clock.noted)
        assert len(clock.noted) == len(written)
        assert clock.at is not None
        # A sum of seconds is rounded: just before a power of two it has a bit less behind the point.
        assert -1e-6 < clock.at - 30 - clock.noted[-1] < 10 if written else True
        box.flush()
        assert b"".join(clock.written) == b"".join(chunks)
        assert each(b"".join(chunks))
        assert each.end() == len(written)


@pytest.mark.parametrize(
    ("writer", "written"),
    [((b"data: ", b"\n\n"), "data: a\n\ndata: é\n\n".encode()), (numbered, "<0 a><1 é>".encode())],
)
def test_texts_are_written_in_a_chunk_without_empty_ones(writer: Any, written: bytes) -> None:
    for way in ways():
        clock, box, each = relay(way, writer)
        assert each(framed(b"a") + framed(b"") + framed("é".encode()))
        box.flush()
        assert clock.written == [b"%x\r\n%b\r\n" % (len(written), written)]
        clock.written.clear()
        assert each(framed(b""))
        box.flush()
        assert (clock.written, each.end()) == ([], 2), "an empty chunk would be the end"


def test_what_a_writer_raises_is_raised() -> None:
    def fail(_: list[bytes]) -> bytes:
        raise ValueError("no")

    for way in ways():
        clock, _, each = relay(way, fail)
        with pytest.raises(ValueError, match="no"):
            each(framed(b"a"))
        assert (each.end(), clock.noted, clock.at) == (0, [], None)


def test_a_read_over_the_limit_is_none() -> None:
    chunk = framed(b"x" * 1000)
    data = chunk * ((1 << 20) // len(chunk) + 1)
    assert [relay(way)[2](data) for way in ways()] == [False, False]
    assert [relay(way)[2](data[: -len(chunk)]) for way in ways()] == [True, True]


@pytest.mark.parametrize("way", ["plain", "compiled"])
def test_a_client_that_turns_out_slow_within_a_write_may_end_the_relay(way: str) -> None:
    """The transport tells so in the middle of `write`; whoever hears it leaves the runs, and drops the relay."""
    modules = dict(zip(("plain", "compiled"), ways(), strict=True))
    clock, _, each = relay(modules[way])
    kept = [each]
    del each
    counted: list[int] = []

    def write(data: bytes) -> None:
        clock.at = None
        counted.append(kept.pop().end())

    clock.write = write  # type: ignore[method-assign]
    chunk = framed(b"x" * 40_000)
    assert kept[0](chunk)
    assert kept[0](chunk)
    assert (counted, clock.at, len(clock.noted)) == ([2], None, 2)


def test_what_is_no_bytes_is_refused() -> None:
    compiled = ways()[1]
    _, box, each = relay(compiled)
    for call, given_ in ((each, "text"), (box.write, "text"), (each, bytearray(b"x")), (compiled.Relay, 1)):
        with pytest.raises(TypeError):
            call(given_)
    with pytest.raises(TypeError):
        compiled.Outbox(object(), asyncio)
    for writer in ((b"one",), ("a", "b"), (b"1", b"2", b"3")):
        with pytest.raises(TypeError):
            relay(compiled, writer)
    with pytest.raises(TypeError):
        relay(compiled, str)[2](framed(b"a"))
