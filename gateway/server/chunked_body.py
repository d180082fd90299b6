"""The parser of a body in the chunked transfer coding (RFC 9112, section 7.1)."""

from __future__ import annotations

from typing import Protocol

import httptools

_HEAD = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"


class PassOn(Protocol):
    """Takes the next piece of a body."""

    def __call__(self, body: bytes, *, is_last: bool) -> None:
        """Take it."""
        ...


def chunked_parser(pass_on: PassOn) -> httptools.HttpRequestParser:
    """A parser that has read a head and passes the pieces of a body on, without their framing and without trailers."""
    parser = httptools.HttpRequestParser(_Pieces(pass_on))
    parser.feed_data(_HEAD)
    return parser


class _Pieces:
    """What the parser calls."""

    def __init__(self, pass_on: PassOn) -> None:
        self._pass_on = pass_on

    def on_body(self, body: bytes) -> None:
        self._pass_on(body, is_last=False)

    def on_message_complete(self) -> None:
        self._pass_on(b"", is_last=True)
