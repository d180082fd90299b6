"""Checkpoint folders for GGUF files: made once a file, in the user's cache, by `gguf_folder`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from backends.native.checkpoints.cache import kept
from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.gguf_header import find_models, read_header

_FORM = "2"  # of the folders: another number makes new ones
_TIMEOUT = 600.0  # seconds
# The folder from which `backends` is imported, three levels above this one's.
_ROOT = Path(__file__).resolve().parents[3]


def choose_file(folder: Path) -> Path:
    """The GGUF file of a folder that holds one model.

    Raises:
        CheckpointError: it holds none, or several.
    """
    found = find_models(folder)
    if len(found) == 1:
        return found[0]
    if not found:
        raise CheckpointError(f"'{folder}' holds no GGUF file of a language model")
    names = ", ".join(file.name for file in found)
    raise CheckpointError(f"'{folder}' holds {len(found)} models: name one of the files {names}")


def folder_of(file: Path, report: Callable[[str], None]) -> Path:
    """The checkpoint folder of a GGUF file. At the first time it is made, which takes from ten seconds to a minute.

    Args:
        file: the file, or the first of a split model.
        report: called with a sentence if it is made.

    Raises:
        CheckpointError: the file cannot be read.
    """
    # Read here first: what is damaged or unsupported is refused in milliseconds, by a text of ours.
    read_header(file)
    status = file.stat()
    # Another file of the same name has another folder. transformers makes the tokenizer, so its version counts.
    parts = (_FORM, _transformers(), str(file.resolve()), str(status.st_size), str(status.st_mtime_ns))
    key = sha256("\0".join(parts).encode()).hexdigest()[:16]

    def make(folder: Path) -> None:
        report(f"Reading {file.name} (the first time takes up to a minute) ...")
        _make(file, folder)

    return kept(f"gguf-{key}", make)


def _transformers() -> str:
    from importlib.metadata import version

    return version("transformers")


def _make(file: Path, folder: Path) -> None:
    command = (sys.executable, "-m", "backends.native.checkpoints.gguf_folder", str(file), str(folder))
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckpointError(f"{file} could not be read within {_TIMEOUT:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        raise CheckpointError(said or f"{file} could not be read: the process that reads it ended ({done.returncode})")
