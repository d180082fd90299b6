"""Logging that a command configures ends with its test: loggers would keep it, and hide from `capture_logs`.

One state server is for all tests that do not end it.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.gateway.state_server import Process


@pytest.fixture(autouse=True)
def _unconfigured_logging() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def state_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A state server that stays up; each test has names of its own there."""
    process = Process(tmp_path_factory.mktemp("state"))
    yield process
    process.kill()


@pytest.fixture
def fleeting_process(tmp_path: Path) -> Iterator[Process]:
    """A state server that a test may end."""
    process = Process(tmp_path)
    yield process
    process.kill()


@pytest.fixture
def _closed_databases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests that leave stores open, as processes that end do: Python 3.13 warns of it."""
    connect, made = sqlite3.connect, list[sqlite3.Connection]()

    def connecting(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", connecting)
    yield
    for each in made:
        each.close()
