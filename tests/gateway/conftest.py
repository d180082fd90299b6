"""Logging that a command configures ends with its test: loggers would keep it, and hide from `capture_logs`."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _unconfigured_logging() -> Iterator[None]:
    yield
    structlog.reset_defaults()
