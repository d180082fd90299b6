"""The feedback store: which arm answered a request, and the feedback values received for that answer so far.

Strategy: each worker has a ring of entries in a mapped file, and a request id contains its worker and its number, so
that any worker finds the entry. The worker writes new entries without a lock, before it sends the end of an answer; a
worker that receives feedback locks the file while it changes an entry. The oldest entries are overwritten.

An entry is one 64-bit word and `FEEDBACK_METRICS` doubles. From high bits to low ones the word holds 30 bits of the
experiment's tag, 17 of the round (how often the ring had been filled, from 1, so that no entry is all zeros), 8 of the
arm's index and 9 of the unit's bucket. A double is the value of one feedback metric; NaN: none was received.
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

from gateway.config import FEEDBACK_METRICS
from gateway.storage.mapped_file import map_file

_ENTRIES = 1 << 16  # 65,536 entries of 72 bytes: 4.5 MiB per worker
_WORD, _VALUE = struct.Struct("<Q"), struct.Struct("<d")
_NO_VALUES = _VALUE.pack(nan) * FEEDBACK_METRICS
_ENTRY_SIZE = _WORD.size + len(_NO_VALUES)
_ID = re.compile(r"(?P<worker>[0-9a-f]{16})(?P<number>[0-9a-f]{8})")  # `Service.new_id`


class Answered(NamedTuple):
    """Who answered a request: the tag of an experiment (below 2**30), the index of its arm, and the unit's bucket."""

    experiment: int
    arm: int
    bucket: int


class FeedbackRing:
    """One worker's ring for writing, and the rings of all workers for lookups.

    Args:
        worker: 16 hexadecimal digits, the prefix of the ids of this worker's requests.
        folder: the folder of all workers' rings; None: memory of this process alone.
        slot: which place among the workers this one has; only one process at a time. Of the rings of its predecessors
            in this place the last is kept, so that feedback still finds their answers, and older ones are removed.
    """

    def __init__(self, worker: str, folder: Path | None = None, slot: str = "0") -> None:
        self._worker = worker
        self._folder = folder
        if folder is not None:
            _remove_old_rings(folder, slot)
        path = folder / f"{slot}.{worker}" if folder is not None else None
        self._ring = map_file(path, _ENTRIES * _ENTRY_SIZE)

    def note(self, id: str, answered: Answered) -> None:
        """Remember who answered a request of this worker; no feedback has been received for it yet."""
        # Numbers have 32 bits and entries 16: 2**16 rounds, and 17 bits hold them counted from 1.
        number = int(id[16:], 16)
        word = answered.experiment << 34 | _round(number) << 17 | answered.arm << 9 | answered.bucket
        at = number % _ENTRIES * _ENTRY_SIZE
        # No lock: the client does not have the end of the answer yet, and its earlier feedback finds no entry.
        self._ring[at : at + _ENTRY_SIZE] = _WORD.pack(word) + _NO_VALUES

    def find(self, id: str) -> Answered | None:
        """Return who answered a request of any worker; None if the entry was never written or is overwritten."""
        with self._entry(id) as found:
            if found is None:
                return None
            (word,) = _WORD.unpack_from(*found)
            return Answered(word >> 34, word >> 9 & 0xFF, word & 0x1FF)

    @contextmanager
    def replacing(self, id: str, metric: int, value: float) -> Iterator[float | None]:
        """Yield the feedback value that `value` replaces, None if there was none; store `value` after the block.

        The entry is locked meanwhile. The block counts the value: if the worker is killed in it, nothing is stored, and
        the next value for this answer is counted as a new one.
        """
        with self._entry(id) as found:
            if found is None:
                yield None
                return
            ring, at = found
            place = at + _WORD.size + metric * _VALUE.size  # values follow the word
            (old,) = _VALUE.unpack_from(ring, place)
            # The lock is held across the block: of two values sent at once, the second sees the first as `before`.
            yield None if isnan(old) else old
            _VALUE.pack_into(ring, place, value)

    @contextmanager
    def _entry(self, id: str) -> Iterator[tuple[mmap.mmap, int] | None]:
        """Lock the ring with the entry of a request, and yield it and the entry's offset; None if there is no entry."""
        known = _ID.fullmatch(id)
        if known is None:
            yield None
            return
        number = int(known["number"], 16)
        with self._locked(known["worker"]) as ring:
            at = number % _ENTRIES * _ENTRY_SIZE
            # An entry of another round is an older or newer request with the same place in the ring.
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
            fcntl.flock(file, fcntl.LOCK_EX)  # excludes other receivers of feedback; `note` takes no lock
            with mmap.mmap(file.fileno(), 0) as ring:
                yield ring


def _remove_old_rings(folder: Path, slot: str) -> None:
    rings = sorted(folder.glob(f"{slot}.*"), key=lambda path: path.stat().st_mtime_ns)
    # The last one belongs to the direct predecessor; this worker's own is made afterwards.
    for path in rings[:-1]:
        path.unlink()


def _round(number: int) -> int:
    """How often the ring had been filled before this request, plus one: the round of an entry never written is 0."""
    return (number // _ENTRIES + 1) & 0x1FFFF  # 17 bits, as in the word
