"""Hypothesis has no deadlines. Test modules that need torch are not imported unless they are selected."""

import gc
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, is_hypothesis_test, settings

pytest_plugins = ["tests.missing_tools"]

settings.register_profile("whole", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("whole"), max_examples=5)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "whole"))

# Triton's kernels run in its interpreter, which is chosen when Triton is imported, perhaps by torch.
os.environ.setdefault("TRITON_INTERPRET", "1")

_NEEDS_TORCH = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.torch\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole modules that `-m "not torch ..."` would: their imports take each test process seconds."""
    if "not torch" not in config.option.markexpr or not collection_path.match("test_*.py"):
        return None
    return True if _NEEDS_TORCH.search(collection_path.read_text()) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from the modules and tests that are collected: none of them is ever garbage.

    Each of its full runs would look at a million objects, during the collection and in the tests that run it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Do not measure the coverage of what draws its examples: it takes minutes, and would differ between two runs."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("no_cover")


@pytest.fixture(autouse=True)
def _unconfigured_log() -> Iterator[None]:
    """Undo what a command that runs in this process configures: loggers would keep it, and no test could read them."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
