"""The pairs that differ most: a few per arm and worker, in one small file per worker that any worker reads.

A file is replaced as a whole, and only when a pair enters the list: ever more rarely, the more pairs there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from gateway.experiments.pairs.agreement import Example

MOST = 10
"""Examples of an arm that are kept and reported."""
LONGEST = 2000
"""Characters of a text that are kept."""


class Examples:
    """One experiment's examples.

    Args:
        path: the common stem of all workers' files of this experiment; None: memory of this process alone.
        slot: the suffix of this worker's file; only one process at a time may use it.
    """

    def __init__(self, path: Path | None = None, slot: int = 0) -> None:
        self._path = path
        self._own = path.with_name(f"{path.name}.{slot}") if path is not None else None
        self._kept: dict[str, list[Example]] = {}

    def note(self, arm: str, difference: float, make: Callable[[], Example]) -> None:
        """Keep a pair if it is among those of this arm that differ most; `make` is called only then."""
        if self._own is not None:
            # A worker that replaces a killed one continues its file, and so does the experiment of the next split.
            self._kept = _read(self._own)
        kept = self._kept.get(arm, [])
        if len(kept) == MOST and abs(difference) <= abs(kept[-1].log_likelihood_difference):
            return
        self._kept[arm] = _worst([*kept, make()])
        if self._own is not None:
            self._own.parent.mkdir(parents=True, exist_ok=True)
            new = self._own.with_name(f".{self._own.name}.new")
            new.write_bytes(msgspec.json.encode(self._kept))
            new.replace(self._own)

    def of(self, arm: str) -> tuple[Example, ...]:
        """The arm's examples over all workers, the worst first."""
        if self._path is None:
            return tuple(self._kept.get(arm, ()))
        return tuple(_worst(each for file in self._files() for each in _read(file).get(arm, ())))

    def _files(self) -> list[Path]:
        return [] if self._path is None else list(self._path.parent.glob(f"{self._path.name}.*"))


def shortened(text: str) -> str:
    """The beginning of a text, as far as it is kept."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _worst(examples: Iterable[Example]) -> list[Example]:
    return sorted(examples, key=lambda example: -abs(example.log_likelihood_difference))[:MOST]


def _read(file: Path) -> dict[str, list[Example]]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[Example]])
    except FileNotFoundError:  # not written yet
        return {}
