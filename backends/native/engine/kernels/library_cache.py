"""The folder in which compiled libraries wait for the next start, and what may be loaded from it.

Strategy: loading a library runs its code, so nothing is loaded that another user could have written. The folder must
belong to this user (or to root, as in a container image) and be writable by nobody else; so must the file, which must
be a regular one. A file's name ends with a digest of its content: a truncated or overwritten file is seen before
`dlopen` maps it, which could kill the process. Files appear by rename, so that no process sees half of one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

log = structlog.get_logger()

FOLDER_VARIABLE = "INTERLINGUA_KERNEL_CACHE"
"""The environment variable that names the folder; without it, `interlingua` in the user's cache folder."""


class UntrustedFolderError(OSError):
    """Others could write to the folder, or it is none."""


def digest(*parts: bytes) -> str:
    """Sixteen hexadecimal digits."""
    hashed = blake2b(digest_size=8)
    for part in parts:
        # The length in front of each part: otherwise a byte that moves from one part to the next would not change the
        # digest.
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.hexdigest()


def why_untrusted(path: Path, *, folder: bool = False) -> str | None:
    """Why nothing may be loaded by way of `path`; None if nobody but this user and root can have written it.

    Raises:
        OSError: it cannot be looked at.
    """
    status = path.lstat()  # not what a symbolic link leads to: the link is somebody's, too
    is_kind = stat.S_ISDIR if folder else stat.S_ISREG
    if not is_kind(status.st_mode):
        return "it is not a folder" if folder else "it is not a regular file"
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user ({status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _why_replaceable(folder: Path) -> str | None:
    """Why others could put another folder in the place of `folder` after it was checked; None if they cannot."""
    # Checked after the folder itself: a folder that nobody else can write to protects nothing if it can be renamed
    # away.
    for parent in folder.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:  # with the sticky bit (/tmp) only owners rename
            return f"everybody can rename what is in {parent} (mode {stat.S_IMODE(mode):04o})"
    return None


def default_folder() -> Path:
    """The folder that this user's engines share.

    Raises:
        RuntimeError: the user has no home folder.
    """
    # XDG Base Directory Specification: XDG_CACHE_HOME, and ~/.cache where it is unset or empty.
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "interlingua")


@dataclass(frozen=True, slots=True)
class LibraryCache:
    """Libraries by key. `folder` None: there is no folder that may be used, and nothing is kept."""

    folder: Path | None

    @classmethod
    def at(cls, folder: Path, mode: int = 0o700) -> LibraryCache:
        """The cache in `folder`, which is made with `mode` if there is none.

        Raises:
            OSError: it cannot be made, or must not be trusted.
        """
        # `mode` holds for a new folder only; the check after it covers folders that were there before.
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        why = why_untrusted(folder, folder=True) or _why_replaceable(folder)
        if why is not None:
            raise UntrustedFolderError(f"kernels are not loaded from {folder}: {why}")
        return cls(folder)

    @classmethod
    def default(cls) -> LibraryCache:
        """The cache in the default folder; if that cannot be used, one that keeps nothing, and a warning."""
        try:
            return cls.at(default_folder())
        except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
            _warn(str(error))
            return cls(None)

    def find(self, key: str) -> Path | None:
        """A whole, trusted library of which the name begins with `key`. Others of such a name are removed."""
        if self.folder is None:
            return None
        for path in sorted(self.folder.glob(f"{key}*.so")):
            why = _why_rejected(path)
            if why is None:
                return path
            self.reject(path, why)
        return None

    def reject(self, path: Path, why: str) -> None:
        """Remove a library that must not be loaded, and log it."""
        log.warning("kernel.cached_library_rejected", path=str(path), why=why)
        # Another process may have removed it, or the folder is read-only; either way it is not loaded.
        with suppress(OSError):
            path.unlink()

    @contextmanager
    def building(self) -> Iterator[Path]:
        """An empty folder to build in, on the cache's file system. It is removed afterwards: `keep` what was built."""
        writable = self.folder is not None and os.access(self.folder, os.W_OK)
        if self.folder is not None and not writable:
            _warn(f"{self.folder} cannot be written")
        # Without a folder of our own: mkdtemp makes one that only this user can enter.
        with TemporaryDirectory(prefix="interlingua-", dir=self.folder if writable else None) as folder:
            yield Path(folder)

    def keep(self, built: Path, key: str) -> Path:
        """Move what was built in `building` to its place, if the folder can be written; where it lies now."""
        built.chmod(0o644)  # whatever the umask is, nobody else may write
        target = built.with_name(f"{key}{digest(built.read_bytes())}.so")
        if self.folder is not None and os.access(self.folder, os.W_OK):
            target = self.folder / target.name
        # A rename within one file system (`building` made the folder there) is atomic: other processes see all of the
        # file or none. One that built the same at the same time replaces it by equal content.
        return built.replace(target)


def _why_rejected(path: Path) -> str | None:
    try:
        why = why_untrusted(path)
        if why is None and path.stem.rpartition("-")[2] != digest(path.read_bytes()):
            why = "it is not what was built: truncated, or overwritten"
    except OSError as error:
        return str(error)
    return why


@cache
def _warn(why: str) -> None:
    """Once a process for each reason, not for each library."""
    log.warning("kernel.cache_not_used", why=why, cost="kernels are compiled again at every start")
