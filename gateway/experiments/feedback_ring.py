"""The feedback store: which arm answered a request, and the feedback values received for that answer so far.

Strategy: an answer's name is a digest of its id and of the key that asked, so that nobody else finds it. Each worker
has a table in a mapped file, and the digest says in which set of entries to look, in the tables of all workers. The
worker writes new entries without a lock, before it sends the end of an answer; a worker that receives feedback locks
the file while it changes an entry. The oldest entries of a set are overwritten. A client's own id is an entry that
holds the name of the answer's entry.

An entry is a name (16 bytes), the tag of the experiment's stratum (64 bits), the arm's index and the unit's bucket (32
bits each), and `FEEDBACK_METRICS` cells, each with a digest of a feedback metric's name (64 bits, 0: none was received)
and its value (a double). Cells are not numbered by the configuration, which may change while an answer is remembered.
"""

from __future__ import annotations

import fcntl
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import msgspec

from gateway.config import FEEDBACK_METRICS
from gateway.storage.mapped_file import map_file

_SETS, _WAYS = 1024, 64  # 65,536 entries of 160 bytes: 10 MiB per worker
_CELL, _WORDS = struct.Struct("<Qd"), struct.Struct("<QII")
_NAME_SIZE = 16
_NAME = struct.Struct(f"{_NAME_SIZE}s")
_CELLS_AT = _NAME_SIZE + _WORDS.size
_ENTRY_SIZE = _CELLS_AT + FEEDBACK_METRICS * _CELL.size
_SET_SIZE = _WAYS * _ENTRY_SIZE
_NEW = struct.Struct(f"{_WORDS.format}{FEEDBACK_METRICS * _CELL.size}s")  # cells without values, or another name
_IS_ALIAS = 0xFFFFFFFF  # in place of an arm: the cells are the name of another entry
_SIZE = _SETS + _SETS * _SET_SIZE  # first, for each set, the place of its next entry

Place = tuple[mmap.mmap, int]
"""A table, and the offset of an entry in it."""


class Answered(msgspec.Struct, frozen=True, gc=False):
    """Who answered a request: the tag of an experiment's stratum, the index of its arm, and the unit's bucket."""

    stratum: int
    arm: int
    bucket: int


def name_of(id: str, owner: bytes, *, of_client: bool = False) -> bytes:
    """The name of an answer.

    Args:
        id: the request's, which is not to be guessed, or the client's own.
        owner: of the key that asked, at most 64 bytes; empty if no key is needed.
        of_client: whether the id is the client's own.
    """
    hasher = _keyed(owner).copy()
    if of_client:
        hasher.update(b"client ")
    hasher.update(id.encode() if id.isascii() else id.encode("utf-8", "surrogatepass"))
    return hasher.digest()


@lru_cache(maxsize=1024)  # as many keys as a gateway may have; a copy of a state costs half of a new one
def _keyed(owner: bytes) -> blake2b:
    return blake2b(digest_size=_NAME_SIZE, key=owner)


class FeedbackRing:
    """One worker's table for writing, and the tables of all workers for lookups.

    Args:
        folder: the folder of all workers' tables; None: memory of this process alone.
        slot: this worker's number there; it continues the table of the worker that it replaces.
    """

    def __init__(self, folder: Path | None = None, slot: int = 0) -> None:
        self._folder = folder
        self._table = map_file(folder / f"{slot}" if folder is not None else None, _SIZE)

    def note(self, name: bytes, answered: Answered, alias: bytes = b"") -> None:
        """Remember who answered a request; no feedback has been received for it yet.

        Args:
            name: the answer's.
            answered: who answered.
            alias: its name by the client's own id, if it has one.
        """
        self._write(name, answered.stratum, answered.arm, answered.bucket)
        if alias:
            self._write(alias, 0, _IS_ALIAS, 0, name)

    def find(self, name: bytes) -> Answered | None:
        """Return who answered a request of any worker; None if the entry was never written or is overwritten."""
        with self._entry(name) as found:
            return Answered(*_words(found)) if found is not None else None

    @contextmanager
    def replacing(self, name: bytes, metric: str, value: float) -> Iterator[float | None]:
        """Yield the feedback value that `value` replaces, None if there was none; store `value` after the block.

        The entry is locked meanwhile. The block counts the value: if the worker is killed in it, nothing is stored, and
        the next value for this answer is counted as a new one.
        """
        with self._entry(name) as found:
            if found is None:
                yield None
                return
            table, at = found
            name = table[at : at + _NAME_SIZE]  # the entry's own: `name` may have been an alias
            wanted = int.from_bytes(blake2b(metric.encode("utf-8", "surrogatepass"), digest_size=8).digest())
            cells = range(at + _CELLS_AT, at + _ENTRY_SIZE, _CELL.size)
            found_metrics = [_CELL.unpack_from(table, cell)[0] for cell in cells]
            # Else the first empty cell. All are taken only by metrics that the endpoint no longer has.
            number = next((found_metrics.index(each) for each in (wanted, 0) if each in found_metrics), 0)
            known, old = _CELL.unpack_from(table, cells[number])
            # The lock is held across the block: of two values sent at once, the second sees the first as `before`.
            yield old if known == wanted else None
            # Unless the entry was overwritten meanwhile, which takes no lock.
            if table[at : at + _NAME_SIZE] == name:
                _CELL.pack_into(table, cells[number], wanted, value)

    def _write(self, name: bytes, stratum: int, arm: int, bucket: int, of: bytes = b"") -> None:
        table, number = self._table, _set_of(name)
        way = table[number]
        table[number] = (way + 1) % _WAYS
        at = _SETS + number * _SET_SIZE + way * _ENTRY_SIZE
        # The name last, so that who finds it finds the rest. No lock: the client does not have the end of the answer
        # yet, and its earlier feedback finds no entry.
        _NEW.pack_into(table, at + _NAME_SIZE, stratum, arm, bucket, of)
        _NAME.pack_into(table, at, name)

    @contextmanager
    def _entry(self, name: bytes) -> Iterator[Place | None]:
        """Lock the table with the entry of an answer, and yield the entry's place; None if there is no entry."""
        tables = [None] if self._folder is None else sorted(self._folder.glob("[0-9]*"))
        for path in tables:
            with self._locked(path) as table:
                at = _find(table, name)
                if at is None:
                    continue
                if _words((table, at))[1] != _IS_ALIAS:
                    yield table, at
                    return
                # An alias and its entry were written by one worker, so they are in one table.
                at = _find(table, table[at + _CELLS_AT : at + _CELLS_AT + _NAME_SIZE])
                yield (table, at) if at is not None else None
                return
        yield None

    @contextmanager
    def _locked(self, path: Path | None) -> Iterator[mmap.mmap]:
        if path is None:
            yield self._table
            return
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # excludes other receivers of feedback; `note` takes no lock
            with mmap.mmap(file.fileno(), 0) as table:
                yield table


def _words(place: Place) -> tuple[int, int, int]:
    """The stratum's tag, the arm and the bucket of an entry."""
    table, at = place
    words: tuple[int, int, int] = _WORDS.unpack_from(table, at + _NAME_SIZE)
    return words


def _find(table: mmap.mmap, name: bytes) -> int | None:
    """The offset of the last entry with this name."""
    number = _set_of(name)
    start = _SETS + number * _SET_SIZE
    for age in range(1, _WAYS + 1):  # a client may use its own id again: the latest answer counts
        at = start + (table[number] - age) % _WAYS * _ENTRY_SIZE
        if table[at : at + _NAME_SIZE] == name:
            return at
    return None


def _set_of(name: bytes) -> int:
    return (name[6] << 8 | name[7]) % _SETS  # of the first 64 bits, as a number
