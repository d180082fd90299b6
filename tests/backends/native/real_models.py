"""The packaged models, for tests that are skipped where they were not fetched (`make models`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.native.checkpoints.packaged import find_packaged
from backends.native.checkpoints.reference import prepare
from tests.missing_tools import missing


def real_model(name: str) -> Path:
    """The folder of a packaged model; the test is skipped if it is not on this machine."""
    if find_packaged(name) is None:
        pytest.skip(missing(f"the model {name} was not fetched: make models"))
    return Path(prepare(name, print, fetch=False))
