"""Files of a fixed size that one process writes as memory and others read.

For what every request writes: a write is a store to memory, with no lock and no system call, and survives the process
that made it, but no power failure. What SQLite would cost instead: decision 15.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path


def map_file(path: Path | None, size: int) -> mmap.mmap:
    """Map a file into memory, shared and writable. A new file is filled with zeros, and its folder is made if need be.

    A new file appears under its name with its whole size, which is reserved on the disk: a store to a page for which
    there is no space would kill the process (SIGBUS).

    Args:
        path: the file, which only one process creates; None: memory of this process alone.
        size: bytes; a file that exists must have as many.

    Raises:
        OSError: the file cannot be made or mapped, or there is no space for it.
        ValueError: the file has fewer bytes.
    """
    if path is None:
        return mmap.mmap(-1, size)  # anonymous memory, zeros
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        new = path.with_name(f".{path.name}.new")
        with new.open("wb") as file:
            # The size first, for systems without `posix_fallocate`; there the file is sparse.
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):  # not on macOS
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                except OSError as error:
                    new.unlink()  # or it would keep the space that it has got
                    raise OSError(error.errno, error.strerror, str(path)) from None
        # Renamed when complete: a reader that finds the name finds the whole size.
        new.rename(path)
    with path.open("r+b") as file:  # the mapping outlives the file object
        return mmap.mmap(file.fileno(), size)
