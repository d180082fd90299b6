"""A JSON file of one struct that processes share: read when it has changed, replaced as a whole under a lock.

The file is never written in place, so that a reader sees the old data or the new. Changes are made under a lock file,
so that none is lost. A reader compares the file's modification time with the one that it knows, which costs one `stat`.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from gateway.config import ConfigError

T = TypeVar("T", bound=msgspec.Struct)


class JsonFile(Generic[T]):
    """One such file; it need not exist yet.

    Args:
        path: the file. Changes also make `<path>.lock` and, for a moment, `<path>.new`.
        empty: what a file that does not exist stands for; its type is what the file is decoded as.
        mode: permissions of the file.
    """

    def __init__(self, path: Path, empty: T, mode: int = 0o666) -> None:
        self.path = path
        self._empty = empty
        self._mode = mode

    def check(self, key: str) -> None:
        """Check that the file could be written.

        Raises:
            ConfigError: its folder does not exist or is not writable; the text begins with `key`, of the configuration.
        """
        # The folder must be writable: changes make a new file, a lock file, and rename.
        if not os.access(self.path.parent, os.W_OK | os.X_OK):
            raise ConfigError(f"{key}: the folder '{self.path.parent}' cannot be written to")

    def stamp(self) -> int:
        """Return a number that differs after each change: the modification time in nanoseconds, 0 without a file.

        A file that cannot be examined (-1) counts as changed: `read` then raises the reason.
        """
        try:
            return os.stat(self.path).st_mtime_ns
        except FileNotFoundError:
            return 0
        except OSError:
            return -1

    def read(self) -> T:
        """Return the data; the empty ones without a file.

        Raises:
            ConfigError: the file cannot be read or decoded.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=type(self._empty))
        except FileNotFoundError:
            return self._empty
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path}: cannot be read: {error}") from None

    def change(self, make: Callable[[T], T]) -> None:
        """Replace the data with what `make` returns for them. Blocks. If `make` raises, nothing is changed.

        Raises:
            ConfigError: the file cannot be read or decoded.
            OSError: it cannot be written.
        """
        with self._locked():
            old = self.read()
            if (new := make(old)) != old:  # another process may have made the same change under the lock before
                self._write(msgspec.json.format(msgspec.json.encode(new)))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A file of its own: the data file is replaced, and a lock on a replaced file would exclude nobody. Closing the
        # file releases the lock; the kernel does so for a process that is killed.
        with self.path.with_name(f"{self.path.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, data: bytes) -> None:
        new = self.path.with_name(f"{self.path.name}.new")  # one name suffices: the lock is held
        new.unlink(missing_ok=True)  # of a process that was killed: its permissions would stay
        with open(new, "wb", opener=lambda path, flags: os.open(path, flags, self._mode)) as file:
            file.write(data)
            file.flush()
            # The data before the rename: after a power failure the name must not lead to an empty file.
            os.fsync(file.fileno())
        stamp = max(time.time_ns(), self.stamp() + 1)  # a file system's clock may stand still for milliseconds
        os.utime(new, ns=(stamp, stamp))
        new.replace(self.path)
        _sync_folder(self.path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
