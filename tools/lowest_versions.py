"""Constraints for pip that install the oldest versions which pyproject.toml allows.

    python -m tools.lowest_versions > FILE; pip install --constraint FILE '.[check]'
    python -m tools.lowest_versions engine triton > FILE       the bounds of these extras alone

A bound is a promise to those whose other packages hold an old version back, and an environment of the newest versions
says nothing about it (`make test-oldest`). What only the tests need has the versions of constraints.txt, and so has
torch: its older builds for CPUs are not on PyPI. What is needed indirectly is left to pip.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = frozenset({"check", "check-engine", "fuzz"})
"""Extras of the tests."""
PINNED = frozenset({"torch"})
"""Packages whose lower bound is not installed."""

_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)(?:\[[^]]*\])?(?:[>=]=(?P<version>[\w.]+))?")


def lowest_versions(project: dict[str, Any], pins: str, extras: Collection[str] = ()) -> Iterator[str]:
    """The lines of the constraints.

    Args:
        project: the table `project` of pyproject.toml.
        pins: the text of constraints.txt.
        extras: those whose bounds count; none: those of all, and of the gateway.
    """
    optional: dict[str, list[str]] = project["optional-dependencies"]
    served = [*project["dependencies"], *(line for name in optional.keys() - TESTS for line in optional[name])]
    wanted = [line for name in extras for line in optional[name]] or served
    lowest = {name: version for name, version in map(_requirement, wanted) if version and name not in PINNED}
    for_tests = {_requirement(line)[0] for name in TESTS for line in optional[name]}
    tools = for_tests - {_requirement(line)[0] for line in served} | PINNED
    pinned = dict(_requirement(line) for line in pins.splitlines() if "==" in line)
    yield from (f"{name}=={lowest[name]}" for name in sorted(lowest))
    yield from (f"{name}=={pinned[name]}" for name in sorted(tools))


def _requirement(line: str) -> tuple[str, str | None]:
    """A requirement's name in its normal form (PEP 503), and its lower bound or pinned version."""
    found = _REQUIREMENT.match(line)
    assert found is not None, line
    return re.sub(r"[-_.]+", "-", found["name"]).lower(), found["version"]


if __name__ == "__main__":
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sys.stdout.write("\n".join(lowest_versions(table, (ROOT / "constraints.txt").read_text(), sys.argv[1:])) + "\n")
