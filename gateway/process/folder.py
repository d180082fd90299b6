"""The folder that the processes of one supervisor share: sockets, counters, stored responses.

It has prompts in it, and a supervisor that is killed cannot remove it. So each folder has a lock, held for as long as
the supervisor or one of its workers lives, and a supervisor that starts or stops removes the folders whose lock nobody
holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog

log = structlog.get_logger()

_PREFIX = "interlingua-"
_LOCK = "lock"


class SharedFolder:
    """A new folder that only this user can enter.

    Attributes:
        path: where it is.
        lock: a descriptor to pass to workers, so that the folder stays while they live.
    """

    def __init__(self) -> None:
        _remove_ownerless()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # The lock belongs to the open file, which inherited descriptors share: it is released with the last of them.
        new = self.path / f"{_LOCK}.new"
        self.lock = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        # Under its name only when it is held: nobody finds a lock that is free because it is being made.
        new.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove the folder, and all that is in it; also those of others whose last worker has ended since then."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)
        _remove_ownerless()


def folders() -> Iterator[Path]:
    """The folders of this kind on the machine, whoever they belong to, and whether or not they are in use."""
    return Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")


def _remove_ownerless() -> None:
    for folder in folders():
        try:
            # Not through a link, and nobody else's: the name is easy to guess.
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            # A folder without a lock is one that is being made at this moment, or not one of ours.
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # in use
            continue
        else:
            log.info("folder.removed", folder=str(folder))
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
