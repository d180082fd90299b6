"""A head that is taken is read as llhttp reads it: proxies in front are built on such parsers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Limits
from gateway.server.request_head import Framing, Head, HeadReader, RefusedHead, read_head

NAMES = st.sampled_from(
    (
        b"Host",
        b"host",
        b"Content-Length",
        b"Transfer-Encoding",
        b"Connection",
        b"Expect",
        b"Upgrade",
        b"X-A",
        b"",
        b"a b",
    )
)
_VALUES = (
    b"a.example||3|03|+3|chunked|Chunked|gzip, chunked|close|keep-alive, Close|100-continue|a\tb|\xe9|a\x00|a:b|upgrade"
)
VALUES = st.sampled_from(_VALUES.split(b"|"))
SPACES = st.sampled_from((b"", b" ", b"\t", b" \t "))
LINES = st.sampled_from(
    (
        b"GET / HTTP/1.1",
        b"POST /v1?a=b%20c HTTP/1.1",
        b"GET /a HTTP/1.0",
        b"OPTIONS * HTTP/1.1",
        b"GET http://a/b HTTP/1.1",
    )
)


class Seen:
    """What llhttp tells of a head."""

    def __init__(self, head: bytes) -> None:
        self.target, self.headers = b"", list[tuple[bytes, bytes]]()
        self.parser = httptools.HttpRequestParser(self)
        self.keeps_alive = False
        with suppress(httptools.HttpParserUpgrade):  # where a body would begin
            self.parser.feed_data(head)

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.keeps_alive = self.parser.should_keep_alive()


@given(LINES, st.lists(st.tuples(NAMES, SPACES, VALUES, SPACES), max_size=4), st.booleans())
def test_what_is_taken_is_read_as_another_parser_reads_it(
    line: bytes, fields: list[tuple[bytes, bytes, bytes, bytes]], named: bool
) -> None:
    first = [line, *([b"Host: h"] if named else [])]
    try:
        head = read_head(b"\r\n".join((*first, *(b"%b:%b%b%b" % field for field in fields), b"", b"")), Limits())
    except RefusedHead:
        return
    # llhttp takes a coding with a space behind it for another one: it gets none.
    seen = Seen(b"\r\n".join((*first, *((b"%b:%b%b" % field[:3]).rstrip(b" \t") for field in fields), b"", b"")))
    assert (head.method, head.target, head.version) == (
        seen.parser.get_method(),
        seen.target,
        seen.parser.get_http_version(),
    )
    assert head.headers == seen.headers
    if head.version == "1.1":
        assert head.keeps_alive == seen.keeps_alive


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (b"", (0, True, False)),
        (b"Content-Length: 7 \r\n", (7, True, False)),
        (b"transfer-encoding:chunked\r\nEXPECT: 100-Continue\r\n", (Framing.CHUNKED, True, True)),
        (b"Connection: keep-alive\r\nConnection: te, close\r\n", (0, False, False)),
    ],
)
def test_the_fields_decide(fields: bytes, expected: tuple[int | Framing, bool, bool]) -> None:
    head: Head = read_head(b"POST / HTTP/1.1\r\nHost: h\r\n%b\r\n" % fields, Limits())
    assert (head.framing, head.keeps_alive, head.expects_continue) == expected


def _heads() -> st.SearchStrategy[bytes]:
    """Heads that are alike: of a few clients, with lengths in several forms, and some that are wrong."""
    lengths = st.sampled_from(("0", "7", "12345", "9" * 18, "9" * 19, "", "-1", "1 2"))
    names = st.sampled_from(("Content-Length: ", "content-length: ", "content-length:", "CONTENT-LENGTH: ", "x: "))
    fields = st.lists(
        st.one_of(
            st.builds(lambda name, length: f"{name}{length}", names, lengths),
            st.sampled_from(("Host: a", "Connection: close", "Expect: 100-continue", "Authorization: Bearer k", "bad")),
        ),
        max_size=4,
    )
    return fields.map(lambda lines: "".join(f"{line}\r\n" for line in ("POST /v HTTP/1.1", *lines, "")).encode())


@given(st.lists(_heads(), min_size=1, max_size=12), st.integers(60, 200))
def test_a_remembered_head_reads_as_if_it_were_read_anew(heads: list[bytes], longest: int) -> None:
    limits = Limits(max_request_line=longest, max_header_bytes=120)
    reader = HeadReader(limits)

    def outcome(read: Callable[[bytes], Head], head: bytes) -> object:
        try:
            return read(head)._replace(lanes=None)  # which only a remembered head has
        except RefusedHead as refused:
            return refused.status, str(refused)

    for head in heads:
        assert outcome(reader.read, head) == outcome(lambda each: read_head(each, limits), head)
