"""Where the parts of a checkpoint folder lie."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = "weights.gguf.path"
"""A file of folders that this project made of a GGUF file: the path of the file, which holds the tensors."""


def gguf_of(folder: Path) -> Path | None:
    """The GGUF file that holds a folder's tensors; None if they are in the folder."""
    pointer = folder / WEIGHTS
    return Path(pointer.read_text()) if pointer.is_file() else None
