"""Reads an input file a part at a time: lines, or what is wrong with them."""

from __future__ import annotations

from pathlib import Path

from adapters.batches import BatchCodec, Line, Problem
from schemas.errors import InvalidRequest

_PART = 200
"""Lines that are read at a time: Python runs nothing else meanwhile, and that must not be noticed."""
_MOST_PROBLEMS = 100


class InputReader:
    """Reads one file.

    Attributes:
        problems: found so far.
        count: of the lines read so far, without empty ones.

    Args:
        path: of the file.
        codec: of the protocol.
        endpoint: that all lines are for.
        most: lines at most.
        longest: bytes of a line at most.
    """

    def __init__(self, path: Path, codec: BatchCodec, endpoint: str, most: int, longest: int) -> None:
        self._path = path
        self._codec = codec
        self._endpoint = endpoint
        self._most = most
        self._longest = longest
        self._at = 0
        self._number = 0
        self._names: set[str] = set()
        self._ended = False
        self.problems: list[Problem] = []
        self.count = 0

    def read(self) -> list[Line] | None:
        """The next lines; None at the end of the file, or after too many problems.

        Raises:
            OSError: the file cannot be read.
        """
        lines: list[Line] = []
        if self._ended:
            return None
        with self._path.open("rb") as file:
            file.seek(self._at)
            for _ in range(_PART):
                given = file.readline(self._longest + 1)
                if not given:
                    self._end()
                    break
                self._number += 1
                if len(given) > self._longest and not given.endswith(b"\n"):
                    self._add("line_too_long", f"This line has more than {self._longest} bytes.")
                    self._ended = True
                    break
                if given.strip():
                    self._take(given, lines)
                if self._ended:
                    break
            self._at = file.tell()
        return lines

    def _take(self, given: bytes, lines: list[Line]) -> None:
        self.count += 1
        if self.count > self._most:
            self._add("too_many_lines", f"A batch has at most {self._most} lines.")
            self._ended = True
            return
        try:
            line = self._codec.read_line(given, self._endpoint)
        except InvalidRequest as error:
            self._add(error.code or "invalid_request", error.message, error.param)
            self._ended = len(self.problems) >= _MOST_PROBLEMS
            return
        if line.custom_id in self._names:
            self._add("duplicate_custom_id", f"The custom_id '{line.custom_id}' is given before.", "custom_id")
        self._names.add(line.custom_id)
        lines.append(line)

    def _end(self) -> None:
        self._ended = True
        if not self.count:
            self.problems.append(Problem("empty_file", "The input file is empty."))

    def _add(self, code: str, message: str, param: str | None = None) -> None:
        self.problems.append(Problem(code, message, self._number, param))
