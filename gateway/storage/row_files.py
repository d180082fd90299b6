"""Files of JSON lines that one process appends to: a new file begins at a size, and the oldest are removed.

Several processes may write into one folder, each into files of its own; together they keep a number of files.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".jsonl"


def is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, or the folder itself if there is none yet."""
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


class RowFiles:
    """The files of one process.

    Args:
        folder: made if need be.
        name: of this process, unique in the folder; it is part of the names of its files.
        max_bytes: from this size on, the next rows go to a new file.
        files: so many are kept in the folder, those of other processes included.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, folder: Path, name: str, max_bytes: int, files: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = name
        self._max_bytes = max_bytes
        self._files = files
        self._file: BinaryIO | None = None

    def append(self, data: bytes) -> None:
        """Write whole lines.

        Raises:
            OSError: they cannot be written.
        """
        if self._file is not None and self._file.tell() >= self._max_bytes:
            self.close()
        if self._file is None:
            # Names sort by age, also those of several processes.
            self._file = (self._folder / f"{time.time_ns():020d}-{self._name}{SUFFIX}").open("ab")
            self._remove_oldest()
        self._file.write(data)
        self._file.flush()

    def close(self) -> None:
        """Close the file; another call of `append` begins a new one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _remove_oldest(self) -> None:
        for file in sorted(self._folder.glob(f"*{SUFFIX}"))[: -self._files]:
            file.unlink(missing_ok=True)  # another process may have removed it
