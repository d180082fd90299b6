"""A pytest plugin: a skip for a missing tool is a failure where the tools must be there.

A test that needs a program or package beyond the environment's own skips with `missing(...)`. On a developer's machine
the test is skipped and the reason is printed. Where `INTERLINGUA_REQUIRE_TOOLS` is set, as in `.ci/run`, it fails.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from importlib.util import find_spec
from typing import TypeVar

import pytest

_PREFIX = "missing tool: "
_REQUIRED = "INTERLINGUA_REQUIRE_TOOLS"
_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)


def missing(what: str) -> str:
    """The reason of a skip, which this plugin recognizes."""
    return f"{_PREFIX}{what}"


needs_engine = pytest.mark.skipif(find_spec("torch") is None, reason=missing("the extra `engine`"))
"""For a test whose configuration has native models, and which imports no torch itself."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that was skipped for a missing tool."""
    return _required((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module that was skipped for a missing tool."""
    return _required((yield))


def _required(report: _Report) -> _Report:
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if _PREFIX in reason and os.environ.get(_REQUIRED):
        report.outcome = "failed"
        report.longrepr = f"{reason} ({_REQUIRED} is set)"
    return report
