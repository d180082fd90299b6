"""Files of a fixed size that one process writes as memory and others read.

For what every request writes: a write is a store to memory, with no lock and no system call, and outlives the process
that was killed. The machine's power failure is not survived. What it costs beside SQLite: decision 15.
"""

from __future__ import annotations

import mmap
from pathlib import Path


def map_file(path: Path | None, size: int) -> mmap.mmap:
    """Map `size` bytes of a file into memory, shared and writable; a file that is not there begins with zeros.

    A new file appears under its name with its whole size. Its folder is made if need be. The space on the disk is
    taken page by page, as it is written.

    Args:
        path: the file, which only one process creates; None: memory of this process alone.
        size: bytes; those of a file that is there already must be as many.

    Raises:
        OSError: the file cannot be made or mapped.
    """
    if path is None:
        return mmap.mmap(-1, size)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        new = path.with_name(f".{path.name}.new")
        with new.open("wb") as file:
            file.truncate(size)
        new.rename(path)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), size)
