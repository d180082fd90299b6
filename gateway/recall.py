"""Which arm answered a request, for feedback that comes later and to any worker.

One ring of 64-bit words a worker, in a file that all may read: a request's id names its worker and its place. What has
been overwritten is forgotten. Not a log: a word holds no more than endpoint, arm and bucket of units.
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path
from typing import NamedTuple

_PLACES = 1 << 16
_WORD = struct.Struct("<Q")
_ID = re.compile(r"(?P<worker>[0-9a-f]{16})(?P<number>[0-9a-f]{8})")


class Answered(NamedTuple):
    """Who answered: places in the configuration's endpoints and their served entities, and the unit's bucket."""

    endpoint: int
    arm: int
    bucket: int


class Recall:
    """One worker's ring, and a view of the others'.

    Args:
        worker: 16 hexadecimal digits, with which the ids of its requests begin.
        folder: where all workers' rings are; None: in memory, for a worker alone.
    """

    def __init__(self, worker: str, folder: Path | None = None) -> None:
        self._worker = worker
        self._folder = folder
        self._words = memoryview(self._map()).cast("Q")

    def note(self, id: str, answered: Answered) -> None:
        """Remember who answered a request of this worker's."""
        number = int(id[16:], 16)
        word = (number + 1) << 32 | answered.endpoint << 20 | answered.arm << 12 | answered.bucket
        self._words[number % _PLACES] = word & (1 << 64) - 1

    def find(self, id: str) -> Answered | None:
        """Who answered it, as far as anybody remembers."""
        known = _ID.fullmatch(id)
        if known is None:
            return None
        number = int(known["number"], 16)
        word = self._word(known["worker"], number % _PLACES)
        if word >> 32 != (number + 1) & 0xFFFFFFFF:
            return None
        return Answered(word >> 20 & 0xFFF, word >> 12 & 0xFF, word & 0xFFF)

    def _word(self, worker: str, place: int) -> int:
        if worker == self._worker:
            return self._words[place]
        if self._folder is None or not (path := self._folder / worker).exists():
            return 0
        with path.open("rb") as file:
            file.seek(place * _WORD.size)
            word: int = _WORD.unpack(file.read(_WORD.size))[0]
        return word

    def _map(self) -> mmap.mmap:
        size = _PLACES * _WORD.size
        if self._folder is None:
            return mmap.mmap(-1, size)
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / self._worker).open("w+b") as file:
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)
