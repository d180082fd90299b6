"""The sizes of a checkpoint folder's text files, checked before anything reads them whole: a folder is not trusted."""

from __future__ import annotations

from pathlib import Path

_MAX_TOKENIZER = 256 << 20
_MAX_TEXT = 16 << 20
_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "*.model")
_TEXTS = ("*.json", "*.jinja", "*.txt")


def check_sizes(folder: Path) -> None:
    """Reject a folder with a file that is larger than any of its kind: 256 MiB for vocabularies, 16 MiB for others.

    Raises:
        ValueError: names the file.
    """
    large = {path for pattern in _TOKENIZERS for path in folder.glob(pattern)}
    others = {path for pattern in _TEXTS for path in folder.glob(pattern)} - large
    for limit, paths in ((_MAX_TOKENIZER, large), (_MAX_TEXT, others)):
        for path in sorted(paths):
            if path.stat().st_size > limit:
                raise ValueError(f"{path.name} in {folder} is larger than {limit >> 20} MiB")
