"""Server-sent events on bytes: an incremental reader, and an escape for JSON that is written into events.

The reader accepts any split of the bytes, CR, LF and CRLF, a byte order mark, comments and multi-line data. U+2028 and
other Unicode line separators are text. An event over `limit` bytes is an error.
Source: WHATWG HTML, section 9.2.6 "Interpreting an event stream".
"""

from __future__ import annotations

import re

import msgspec

from schemas.errors import BackendFailed, Fault

_BOM = b"\xef\xbb\xbf"

# U+0085, U+2028 and U+2029 end no line of an event stream, but they do for Python's `str.splitlines` and httpx's
# `iter_lines`, with which litellm and huggingface_hub read streams. JSON encoders do not escape them.
_LINE_SEPARATORS = re.compile(rb"\xc2\x85|\xe2\x80[\xa8\xa9]")


def guard(json: bytes) -> bytes:
    """The same JSON, with the Unicode line separators escaped at which some clients would split it."""
    if json.isascii() or not (b"\xe2\x80\xa8" in json or b"\xe2\x80\xa9" in json or b"\xc2\x85" in json):
        return json
    return _LINE_SEPARATORS.sub(_escape, json)


def _escape(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(match[0].decode())


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event: its `type` ("message" if the stream has no other) and its `data`."""

    data: bytes
    type: bytes = b"message"

    def __repr__(self) -> str:
        return f"Event({self.data!r}, {self.type!r})"


class EventReader:
    """Incremental reader of one event stream.

    Args:
        limit: bytes of one event, including lines that are not complete.
    """

    __slots__ = ("_after_cr", "_data", "_fresh", "_limit", "_rest", "_size", "_type")

    def __init__(self, limit: int = 1 << 20) -> None:
        self._limit = limit
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._type = b""
        self._fresh = True
        self._after_cr = False

    def feed(self, data: bytes) -> list[Event]:
        """The events completed by these bytes.

        Raises:
            schemas.errors.BackendFailed: an event is larger than the limit.
        """
        events: list[Event] = []
        for line in self._lines(data):
            if line:
                self._field(line)
            elif self._data:
                events.append(Event(b"\n".join(self._data), self._type or b"message"))
                self._data, self._size, self._type = [], 0, b""
            else:
                self._type = b""
        if self._size + len(self._rest) > self._limit:
            raise BackendFailed("The backend sent an event larger than the limit.", fault=Fault.MALFORMED)
        return events

    @property
    def pending(self) -> bytes:
        """The bytes of an incomplete line or event; at the end of a stream there should be none."""
        return b"\n".join([*self._data, self._rest]).strip()

    def _lines(self, data: bytes) -> list[bytes]:
        """The lines completed by these bytes."""
        if self._fresh:
            data = self._rest + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest = data
                return []
            data, self._rest, self._fresh = data.removeprefix(_BOM), b"", False
        if self._after_cr and data:  # the line ended at the CR: an LF after it ends no other line
            data, self._after_cr = data.removeprefix(b"\n"), False
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        lines = data.splitlines()
        lines[0] = self._rest + lines[0]
        self._rest = b"" if data.endswith((b"\n", b"\r")) else lines.pop()
        return lines

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
            if self._size > self._limit:
                raise BackendFailed("The backend sent an event larger than the limit.", fault=Fault.MALFORMED)
        elif name == b"event":
            self._type = value
