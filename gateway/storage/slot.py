"""A number that one process at a time holds in a folder, so that each of its files there has one writer.

The lowest free number is taken, so the process that replaces another one continues its files. The kernel frees the
number when its process ends, however that ends.
"""

from __future__ import annotations

import fcntl
from itertools import count
from pathlib import Path


class Slot:
    """Takes the lowest free number of a folder, which is made if need be."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for number in count():
            file = (folder / f"{number}.slot").open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            self.number, self._file = number, file
            return

    def close(self) -> None:
        """Free the number."""
        self._file.close()
