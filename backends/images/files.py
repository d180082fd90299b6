"""Reads images below one configured folder.

Each directory of a path is opened relative to the one before it, with O_NOFOLLOW. No symbolic link and no ".." leads
out, and a directory that is swapped for a link between check and use is not followed either (TOCTOU).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from backends.images.header import too_many_bytes
from backends.images.options import ImageOptions
from schemas.errors import InvalidRequest

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO without a writer would block the thread for good; regular files ignore the flag.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_file(path: str, options: ImageOptions) -> bytes:
    """The bytes of a regular file below `options.folder`. `path` may be a `file:` URI.

    Raises:
        schemas.errors.InvalidRequest: the file cannot be read, with one text for all reasons so that clients cannot
            probe for files, or it is too large.
    """
    # All reasons end in the one text below. `too_many_bytes` passes: it is neither of the two.
    with suppress(OSError, ValueError):
        steps = _steps(path.removeprefix("file://"), options.folder)
        if steps and options.folder:
            return _read(options.folder, steps, options)
    raise InvalidRequest("There is no such image that may be read.")


def _steps(path: str, folder: str | None) -> list[str]:
    """The names from the folder to the file; empty if the path leads out of the folder."""
    if folder is None:
        return []
    # An absolute path must name the folder as the configuration does. The text is compared, no link is resolved.
    if path.startswith("/"):
        root = folder.rstrip("/") + "/"
        if not path.startswith(root):
            return []
        path = path.removeprefix(root)
    steps = path.split("/")
    return [] if any(step in ("", ".", "..") or "\0" in step for step in steps) else steps


def _read(folder: str, steps: list[str], options: ImageOptions) -> bytes:
    # Without O_NOFOLLOW: the folder itself is the operator's choice and may be a link.
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in steps[:-1]:
            inner = os.open(step, _DIRECTORY_FLAGS, dir_fd=at)
            # The inner directory is open, so the outer one is no longer needed. On an error, `finally` closes `at`.
            os.close(at)
            at = inner
        # Checked before the open, because opening a device may have effects, and after it, because the file may have
        # been replaced in between.
        _require_regular(os.stat(steps[-1], dir_fd=at, follow_symlinks=False))
        with os.fdopen(os.open(steps[-1], _FILE_FLAGS, dir_fd=at), "rb") as file:
            _require_regular(os.fstat(file.fileno()))
            data = file.read(options.max_bytes + 1)  # one byte more shows that it is too large
    finally:
        os.close(at)
    if len(data) > options.max_bytes:
        raise too_many_bytes(options)
    return data


def _require_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError("not a regular file")
