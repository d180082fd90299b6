"""Which arm answered a request, for feedback that comes later and to any worker, and what feedback came.

One ring of entries a worker, in a file that all may read: a request's id names its worker and its place. What has been
overwritten is forgotten. Not a log: an entry's first word holds no more than experiment, arm and bucket of units, from
high to low 30 bits of the experiment's tag, 17 of the request's number above its place, 8 and 9. The others are the
values that were told for it, by metric; NaN: none.
"""

from __future__ import annotations

import fcntl
import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

METRICS = 8
"""Values of so many metrics can be told for an answer."""

_PLACES = 1 << 16
_WORD, _VALUE = struct.Struct("<Q"), struct.Struct("<d")
_NO_VALUES = _VALUE.pack(nan) * METRICS
_SIZE = _WORD.size + len(_NO_VALUES)
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
        slot: one worker's at a time. Of those that had it before, the last one's ring is kept, older ones are removed.
    """

    def __init__(self, worker: str, folder: Path | None = None, slot: str = "0") -> None:
        self._worker = worker
        self._folder = folder
        self._ring = self._map(slot)

    def note(self, id: str, answered: Answered) -> None:
        """Remember who answered a request of this worker's."""
        number = int(id[16:], 16)
        word = answered.experiment << 34 | _round(number) << 17 | answered.arm << 9 | answered.bucket
        at = number % _PLACES * _SIZE
        self._ring[at : at + _SIZE] = _WORD.pack(word) + _NO_VALUES

    def find(self, id: str) -> Answered | None:
        """Who answered it, as far as anybody remembers."""
        with self._entry(id) as found:
            if found is None:
                return None
            (word,) = _WORD.unpack_from(*found)
            return Answered(word >> 34, word >> 9 & 0xFF, word & 0x1FF)

    def tell(self, id: str, metric: int, value: float) -> float | None:
        """Note a value that was told for an answer; the one that was told before."""
        with self._entry(id) as found:
            if found is None:
                return None
            ring, at = found
            place = at + _WORD.size + metric * _VALUE.size
            (old,) = _VALUE.unpack_from(ring, place)
            _VALUE.pack_into(ring, place, value)
            return None if isnan(old) else old

    @contextmanager
    def _entry(self, id: str) -> Iterator[tuple[mmap.mmap, int] | None]:
        """Where the entry of an answer is, nobody else's for the moment; None if it is forgotten."""
        known = _ID.fullmatch(id)
        if known is None:
            yield None
            return
        number = int(known["number"], 16)
        with self._locked(known["worker"]) as ring:
            at = number % _PLACES * _SIZE
            valid = ring is not None and _WORD.unpack_from(ring, at)[0] >> 17 & 0x1FFFF == _round(number)
            yield (ring, at) if ring is not None and valid else None

    @contextmanager
    def _locked(self, worker: str) -> Iterator[mmap.mmap | None]:
        if self._folder is None:
            yield self._ring if worker == self._worker else None
            return
        path = next(self._folder.glob(f"*.{worker}"), None)
        if path is None:
            yield None
            return
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with mmap.mmap(file.fileno(), 0) as ring:
                yield ring

    def _map(self, slot: str) -> mmap.mmap:
        size = _PLACES * _SIZE
        if self._folder is None:
            return mmap.mmap(-1, size)
        self._folder.mkdir(parents=True, exist_ok=True)
        before = sorted(self._folder.glob(f"{slot}.*"), key=lambda path: path.stat().st_mtime_ns)
        for path in before[:-1]:
            path.unlink()
        with (self._folder / f"{slot}.{self._worker}").open("w+b") as file:
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)


def _round(number: int) -> int:
    """How often the ring had been filled, from 1: a word never written says 0."""
    return (number // _PLACES + 1) & 0x1FFFF
