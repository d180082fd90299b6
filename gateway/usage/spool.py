"""Records on their way to the database, in files that outlive the worker that writes them.

Strategy: a worker appends one line per request with one `write`, which is in the kernel's page cache before the client
gets the end of the answer: a worker that is killed loses none. A file has one writer, which holds a lock on it, and is
removed when its records are in the database and nobody holds the lock. A line without an end was cut by a kill: the
client has no end of that answer, either.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from pathlib import Path

import msgspec
import structlog

from gateway.usage.record import Record

log = structlog.get_logger()

SUFFIX = ".spool"
_LARGEST = 1 << 20
"""Bytes from which on a worker begins another file, so that the former one can go."""
_BETWEEN_TRIES = 1.0
"""Seconds between two tries of a worker that cannot write."""


class Spool:
    """Writes the records of one process.

    Args:
        folder: of the files of all processes; made if need be.
        most: bytes of all files together from which on records are lost.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._file: int | None = None
        self._size = 0
        self._next_try = 0.0
        self._lost = 0
        self._encode = msgspec.json.Encoder().encode

    def append(self, record: Record) -> bool:
        """Keep a record; whether that succeeded."""
        try:
            if (file := self._file) is None or self._size >= _LARGEST:
                file = self._begin()
            line = self._encode(record) + b"\n"
            if os.write(file, line) < len(line):
                os.ftruncate(file, self._size)
                raise OSError("the disk is full")
        except OSError as error:
            if not self._lost:  # once, not for each of many requests
                log.error("usage.lost", error=str(error))
            self._lost += 1
            return False
        self._size += len(line)
        if self._lost:
            log.warning("usage.resumed", lost=self._lost)
            self._lost = 0
        return True

    def close(self) -> None:
        """Close the file: it is complete."""
        if self._file is not None:
            os.close(self._file)  # and so the lock is free
            self._file = None

    def _begin(self) -> int:
        if (now := time.monotonic()) < self._next_try:
            raise OSError("records cannot be written")
        self._next_try = now + _BETWEEN_TRIES
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sum(_size(path) for path in files(self._folder)) >= self._most:
            raise OSError("too many records wait for the database")
        self.close()
        # Names sort by age. The name is given when the lock is held: nobody finds a file that seems to have no writer.
        path = self._folder / f"{time.time_ns():020d}-{secrets.token_hex(8)}{SUFFIX}"
        new = path.with_suffix(".new")
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        new.rename(path)
        self._file, self._size, self._next_try = file, 0, 0.0
        return file


def files(folder: Path) -> list[Path]:
    """The files of a folder, the oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def has_writer(path: Path) -> bool:
    """Whether a process still appends to a file."""
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(file)


def read_lines(path: Path, since: int, most: int) -> bytes:
    """The whole lines of a file from a place on, about `most` bytes of them, at least one line."""
    with path.open("rb") as file:
        file.seek(since)
        data = file.read(most)
        while (end := data.rfind(b"\n") + 1) == 0 and (more := file.read(most)):
            data += more
    return data[:end]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it is in the database by now
        return 0
