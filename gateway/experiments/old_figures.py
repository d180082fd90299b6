"""Figures that no endpoint goes on with: of endpoints that were removed, and of arms that were replaced."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

KEPT_DAYS = 30
"""How long figures are kept after the last change: whoever brings an endpoint or its arms back goes on with them."""

_KEY = re.compile(r"[0-9a-f]{32}")


def remove_old(folder: Path, served: Collection[str], now: float) -> list[str]:
    """Remove the figures of experiments that are not served, and in which nothing has changed for `KEPT_DAYS`.

    Args:
        folder: of all figures.
        served: the keys of the experiments of configured endpoints, whose figures are never removed.
        now: Unix time in seconds.

    Returns:
        The keys of what was removed.
    """
    oldest = now - KEPT_DAYS * 86400
    old = [
        each
        for each in sorted(folder.iterdir())
        if _KEY.fullmatch(each.name) and each.name not in served and max(_changes(each), default=0.0) < oldest
    ]
    for each in old:
        # Nobody reads it. Of what cannot be removed, the next start tries again.
        shutil.rmtree(each, ignore_errors=True)
    return [each.name for each in old]


def _changes(folder: Path) -> Iterator[float]:
    """When a folder and what is in it were changed."""
    yield folder.stat().st_mtime
    for each in folder.rglob("*"):
        yield each.stat().st_mtime
