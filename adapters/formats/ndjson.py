"""Lines of JSON (NDJSON) on bytes: an incremental reader. An empty line is no frame.

Source: the NDJSON specification, version 1.0.
"""

from __future__ import annotations

from adapters.formats.sse import Event
from schemas.errors import BackendFailed, Fault


class LineReader:
    """Incremental reader of one stream of lines.

    Args:
        limit: bytes of one line, including one that is not complete.
    """

    __slots__ = ("_limit", "_rest")

    def __init__(self, limit: int = 1 << 20) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """The lines completed by these bytes.

        Raises:
            schemas.errors.BackendFailed: a line is larger than the limit.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (*lines, self._rest))) > self._limit:
            raise BackendFailed("The backend sent a line larger than the limit.", fault=Fault.MALFORMED)
        return [Event(line) for line in lines if line.strip()]

    @property
    def pending(self) -> bytes:
        """The bytes of a line without an end; at the end of a stream it may be the last line."""
        return self._rest.strip()
