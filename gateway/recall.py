"""Which arm answered a request, for feedback that comes later and to any worker.

One ring of 64-bit words a worker, in a file that all may read: a request's id names its worker and its place. What has
been overwritten is forgotten. Not a log: a word holds no more than experiment, arm and bucket of units, from high to
low 30 bits of the experiment's tag, 17 of the request's number above its place, 8 and 9.
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
    """Who answered: an experiment's tag, below 2**30, the place of one of its arms, and the unit's bucket."""

    experiment: int
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
        self._words[number % _PLACES] = (
            answered.experiment << 34 | _round(number) << 17 | answered.arm << 9 | answered.bucket
        )

    def find(self, id: str) -> Answered | None:
        """Who answered it, as far as anybody remembers."""
        known = _ID.fullmatch(id)
        if known is None:
            return None
        number = int(known["number"], 16)
        word = self._word(known["worker"], number % _PLACES)
        if word >> 17 & 0x1FFFF != _round(number):
            return None
        return Answered(word >> 34, word >> 9 & 0xFF, word & 0x1FF)

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


def _round(number: int) -> int:
    """How often the ring had been filled, from 1: a word never written says 0."""
    return (number // _PLACES + 1) & 0x1FFFF
