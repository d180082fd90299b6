"""The user's cache folder of checkpoints: each is made aside and then moved, so that whatever has its name is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

from backends.native.checkpoints.errors import CheckpointError

FOLDER_VARIABLE = "INTERLINGUA_MODELS"
"""The environment variable that names the folder; without it, `interlingua/models` in the user's cache folder."""


def models_folder() -> Path:
    """Where checkpoints that were fetched or converted are kept.

    Raises:
        CheckpointError: the user has no home folder.
    """
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).absolute()
    try:
        # XDG Base Directory Specification: XDG_CACHE_HOME, and ~/.cache where it is unset or empty.
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "interlingua", "models")
    except RuntimeError:
        raise CheckpointError(f"this user has no home folder: name a folder for models in {FOLDER_VARIABLE}") from None


def kept(key: str, make: Callable[[Path], None]) -> Path:
    """The folder called `key`; if there is none, `make` fills an empty one that gets its name.

    Raises:
        CheckpointError: it cannot be made.
    """
    found = models_folder() / key
    if found.is_dir():
        return found
    try:
        found.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = Path(mkdtemp(prefix=f".{found.name}-", dir=found.parent))
    except OSError as error:
        raise CheckpointError(f"{found.parent} cannot be written to: {error.strerror}") from None
    try:
        make(beside)
        # Atomic; fails if another process was faster, and then its folder is as good.
        beside.rename(found)
    except OSError as error:
        if not found.is_dir():
            raise CheckpointError(f"{found} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return found
