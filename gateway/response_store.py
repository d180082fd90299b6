"""Answers that may be asked for again (`/v1/responses/{id}`): one file each, in a folder that all workers share.

A cache, not a database: when it is full what was not asked for longest goes, and with the server all of it. A record's
name is a digest of its id and of the key that asked, so that another key finds nothing. Why files: decision 0012.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from adapters.base import Record
from gateway.auth import given_key

log = structlog.get_logger()

_BLOCK = 4096  # what the smallest file takes
_LARGEST = 16  # a record may take this part of the room, and the folder may have grown by so much between two looks


class RecordStore:
    """All workers' records.

    Args:
        limit: bytes that they may take, by and large.
        folder: where they are; None: somewhere of its own, for a worker alone.
    """

    def __init__(self, limit: int, folder: Path | None = None) -> None:
        self._limit = limit
        self._shared = folder is not None
        self._folder = folder or Path(tempfile.gettempdir(), f"interlingua-records-{secrets.token_hex(8)}")
        self._written = 0

    def of(self, headers: Mapping[str, str]) -> OwnRecords:
        """Those of the key that a request carries."""
        return OwnRecords(self, given_key(headers))

    def get(self, name: str) -> bytes | None:
        """What a record holds; it counts as asked for just now."""
        path = self._folder / name
        try:
            data = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        return data

    def put(self, name: str, data: bytes) -> bool:
        """Keep a record; whether there is room for one of its size."""
        if len(data) > self._limit // _LARGEST:
            return False
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
            file.write(data)
        Path(file.name).replace(self._folder / name)  # at once: another worker sees all of it or nothing
        self._written += max(_BLOCK, len(data))
        if self._written > self._limit // _LARGEST:
            self._sweep()
        return True

    def delete(self, name: str) -> bool:
        """Forget a record; whether there was one."""
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Forget everything that is this worker's alone."""
        if not self._shared:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _sweep(self) -> None:
        """Forget what was asked for longest ago, as far as the others need the room."""
        self._written = 0
        found: list[tuple[float, int, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # another worker was faster, as below
                    stat = entry.stat()
                    found.append((stat.st_mtime, max(_BLOCK, stat.st_size), entry.path))
        excess = sum(size for _, size, _ in found) - self._limit
        for _, size, path in sorted(found):
            if excess <= 0:
                break
            with suppress(FileNotFoundError):
                Path(path).unlink()
            excess -= size


class OwnRecords:
    """One key's records; `adapters.base.Records`."""

    def __init__(self, store: RecordStore, key: str) -> None:
        self._store = store
        self._key = key

    def get(self, id: str) -> bytes | None:
        """What was kept under an id; None if nothing is any more."""
        return self._store.get(self._name(id))

    def delete(self, id: str) -> bool:
        """Forget it; whether there was anything."""
        return self._store.delete(self._name(id))

    def keep(self, record: Record) -> None:
        """Keep a record; if it is too large or there is no place for it, it is not, which the log says."""
        try:
            if not self._store.put(self._name(record.id), record.data):
                log.warning("record.too_large", id=record.id, bytes=len(record.data))
        except OSError as error:  # the answer itself is none the worse
            log.error("record.not_kept", id=record.id, why=error.strerror)

    def _name(self, id: str) -> str:
        said = f"{self._key}\0{id}".encode("utf-8", "surrogateescape")
        return hashlib.blake2b(said, digest_size=16).hexdigest()
