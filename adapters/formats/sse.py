"""Server-sent events on bytes: an incremental reader, and an escape for JSON that is written into events.

The reader accepts any split of the bytes, CR, LF and CRLF, a byte order mark, comments and multi-line data. U+2028 and
other Unicode line separators are text. An event over `limit` bytes is an error.
Source: WHATWG HTML, section 9.2.6 "Interpreting an event stream".
"""

from __future__ import annotations

import re

import msgspec

from schemas.errors import BackendFailed, Fault

LIMIT = 1 << 20
"""Bytes of one event."""

_BOM = b"\xef\xbb\xbf"

# U+0085, U+2028 and U+2029 end no line of an event stream, but they do for Python's `str.splitlines` and httpx's
# `iter_lines`, with which litellm and huggingface_hub read streams. JSON encoders do not escape them.
_LINE_SEPARATORS = re.compile(rb"\xc2\x85|\xe2\x80[\xa8\xa9]")


def guard(json: bytes) -> bytes:
    """The same JSON, with the Unicode line separators escaped at which some clients would split it."""
    # Most frames end here: plain searches are much cheaper than the regular expression.
    if json.isascii() or not (b"\xe2\x80\xa8" in json or b"\xe2\x80\xa9" in json or b"\xc2\x85" in json):
        return json
    return _LINE_SEPARATORS.sub(_escape, json)


def _escape(match: re.Match[bytes]) -> bytes:
    # All three characters are in the basic multilingual plane: one \u escape, no surrogate pair.
    return b"\\u%04x" % ord(match[0].decode())


# Strategy: bytes are cut into lines as they arrive; `_rest` holds the line that is not complete. Fields of one event
# gather in `_data` and `_type` until an empty line dispatches the event. The text is never decoded: fields are compared
# as bytes, because UTF-8 keeps CR, LF and ":" out of multi-byte characters.
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

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._type = b""
        # At the very beginning a byte order mark may come, possibly split between reads.
        self._fresh = True
        # The last read ended in CR: whether an LF belongs to it is known only with the next read.
        self._after_cr = False

    def feed(self, data: bytes) -> list[Event]:
        """The events completed by these bytes.

        Raises:
            schemas.errors.BackendFailed: an event is larger than the limit.
        """
        events: list[Event] = []
        for line in self._lines(data):
            if line:
                name, _, value = line.partition(b":")
                # "If value starts with a U+0020 SPACE character, remove it from value": one space. A comment (":...")
                # has the empty name and matches no field; `id` and `retry` have no meaning for these streams.
                value = value.removeprefix(b" ")
                if name == b"data":
                    self._data.append(value)
                    self._size += len(value) + 1
                    if self._size > self._limit:
                        raise _too_large()
                elif name == b"event":
                    self._type = value
            # An empty line dispatches the event, but only one with data; without data it resets the type alone.
            elif self._data:
                events.append(Event(b"\n".join(self._data), self._type or b"message"))
                self._data, self._size, self._type = [], 0, b""
            else:
                self._type = b""
        # `_rest` counts, too: a server that never ends its line would fill the memory otherwise.
        if self._size + len(self._rest) > self._limit:
            raise _too_large()
        return events

    @property
    def between_events(self) -> bool:
        """Whether the next byte begins an event."""
        return not (self._rest or self._data or self._type or self._fresh or self._after_cr)

    @property
    def pending(self) -> bytes:
        """The bytes of an incomplete line or event; at the end of a stream there should be none."""
        return b"\n".join([*self._data, self._rest]).strip()

    def _lines(self, data: bytes) -> list[bytes]:
        """The lines completed by these bytes."""
        if self._fresh:
            data = self._rest + data
            # One or two bytes of a possible mark: wait for the third.
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest = data
                return []
            data, self._rest, self._fresh = data.removeprefix(_BOM), b"", False
        if self._after_cr and data:  # the line ended at the CR: an LF after it ends no other line
            data, self._after_cr = data.removeprefix(b"\n"), False
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        # `bytes.splitlines` splits at CR, LF and CRLF only, as the specification demands; `str.splitlines` would not
        # do.
        lines = data.splitlines()
        lines[0] = self._rest + lines[0]
        # The last piece is a whole line only if the data ended with a line ending.
        self._rest = b"" if data.endswith((b"\n", b"\r")) else lines.pop()
        return lines


def _too_large() -> BackendFailed:
    return BackendFailed("The backend sent an event larger than the limit.", fault=Fault.MALFORMED)
