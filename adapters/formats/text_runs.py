"""Runs of events that differ in their texts alone, as most of a stream does: found without decoding each event.

Strategy: of an event that was decoded and adds text and nothing else, the bytes before and behind the text are kept. A
read from the socket that consists of such events, with other texts between the same bytes, is the same JSON with other
strings, so all that decoding it could find is known. Texts with an escape, and whatever else differs in a byte, are
left to the decoder.
"""

from __future__ import annotations

import re

import msgspec

from adapters.formats.sse import LIMIT, guard

PROBE = "probe"
"""A text to try learned bytes with."""
# What a JSON string holds as it is: no quote, backslash or control character; UTF-8 is checked by decoding.
_LITERAL = re.compile(rb'[^"\\\x00-\x1f]*+')
_ASCII = re.compile(rb'[^"\\\x00-\x1f\x80-\xff]*+')
_LENGTHS: dict[int, bytes] = {}
"""The length that a chunk of the transfer coding begins with, by its bytes in all; b"\\n" if there is none."""
_SHORT = 1024
"""Bytes of a chunk whose length is kept there, at most."""


class Run(msgspec.Struct, frozen=True, gc=False):
    """A read's chunks.

    Attributes:
        texts: that they add to a choice; each is UTF-8.
        text: all of it.
        relayed: the events that they are relayed as, if they are.
    """

    texts: list[bytes]
    text: str
    relayed: bytes


class TextRuns:
    """What the events of one choice have around their texts.

    Args:
        received: the bytes around the text of an event, with the lines of server-sent events.
        sent: the same as it is relayed.
        choice: the index of the choice.

    Attributes:
        begin, end: `received`.
    """

    __slots__ = ("_before", "_behind", "_between", "_fixed", "_least", "_sent", "begin", "choice", "end")

    def __init__(self, received: tuple[bytes, bytes], sent: tuple[bytes, bytes], choice: int) -> None:
        self.choice = choice
        self.begin, self.end = received
        self._between = self.end + self.begin
        self._least = len(self._between)  # in fewer bytes, those before and after a text would overlap
        # The same as chunks of the transfer coding (RFC 9112, section 7.1), behind their lengths.
        self._before, self._behind = b"\r\n" + self.begin, self.end + b"\r\n"
        self._fixed = len(self.begin) + len(self.end)
        self._sent = None if sent == received else sent

    def read(self, data: bytes) -> Run | None:
        """The chunks of a read that begins where an event of the stream does; None if it has anything else."""
        if not (data.startswith(self.begin) and data.endswith(self.end) and self._least <= len(data) <= LIMIT):
            return None
        pieces = data[len(self.begin) : -len(self.end)].split(self._between)
        joined = b"".join(pieces)
        if not _LITERAL.fullmatch(joined) or not (joined.isascii() or _is_plain(pieces, joined)):
            return None
        if self._sent is None:
            return Run(pieces, joined.decode(), data)
        begin, end = self._sent
        return Run(pieces, joined.decode(), begin + (end + begin).join(pieces) + end)

    @property
    def as_they_came(self) -> bool:
        """Whether they are relayed so."""
        return self._sent is None

    def framed(self, data: bytes) -> int:
        """How many texts there are in a read that begins where a chunk of the transfer coding does.

        Returns:
            -1 unless it is whole chunks, each of them one event of a run, with their lengths as `b"%x"` writes them.
        """
        size = len(data)
        if not data.endswith(self._behind) or size > LIMIT:
            return -1
        # Fast path: a single chunk.
        length = _LENGTHS.get(size) or _length(size)
        if data.startswith(length) and data.startswith(self._before, len(length)):
            begin, end = len(length) + len(self._before), size - len(self._behind)
            if _ASCII.fullmatch(data, begin, end):
                return 1 if end > begin else 0
        texts = self._texts(data)
        return -1 if texts is None else len(texts) - texts.count(b"")

    def framed_texts(self, data: bytes) -> list[bytes] | None:
        """The texts of a read that `framed` counts, but for empty ones; None where that returns -1."""
        size = len(data)
        if not data.endswith(self._behind) or size > LIMIT:
            return None
        # The same fast path: a call would be a tenth of what it takes.
        length = _LENGTHS.get(size) or _length(size)
        if data.startswith(length) and data.startswith(self._before, len(length)):
            begin, end = len(length) + len(self._before), size - len(self._behind)
            if _ASCII.fullmatch(data, begin, end):
                return [data[begin:end]] if end > begin else []
        texts = self._texts(data)
        return texts if texts is None or b"" not in texts else [text for text in texts if text]

    def _texts(self, data: bytes) -> list[bytes] | None:
        """The texts of chunks of the transfer coding; None: there is something else."""
        texts: list[bytes] = []
        pieces = data.split(self._behind)
        del pieces[-1]
        for piece in pieces:
            length, found, text = piece.partition(self._before)
            if not found or length != b"%x" % (self._fixed + len(text)):
                return None
            texts.append(text)
        joined = b"".join(texts)
        if not _LITERAL.fullmatch(joined) or not (joined.isascii() or _is_plain(texts, joined)):
            return None
        return texts


def _length(size: int) -> bytes:
    """What such a chunk begins with; see `_LENGTHS`."""
    found = b"\n"
    for digits in range(1, 9):
        length = b"%x" % max(0, size - digits - len(b"\r\n\r\n"))
        if len(length) == digits:
            found = length
    if size <= _SHORT:
        _LENGTHS[size] = found
    return found


def _is_plain(pieces: list[bytes], joined: bytes) -> bool:
    """Whether each of these texts is UTF-8, and all clients read it as one line."""
    try:
        for piece in pieces:
            piece.decode()
    except UnicodeDecodeError:
        return False
    return guard(joined) is joined


def around(data: bytes, name: bytes) -> tuple[bytes, bytes] | None:
    """The bytes before and behind the only text of this name that a chunk has."""
    before, found, rest = data.partition(name)
    if not found or name in rest or not data.isascii():
        return None
    text, _, after = rest.partition(b'"')
    return None if b"\\" in text else (before + name, b'"' + after)
