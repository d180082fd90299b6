"""Constraints of the oldest versions that pyproject.toml allows."""

from __future__ import annotations

import tomllib

from tools.lowest_versions import PINNED, ROOT, lowest_versions

PROJECT = {
    "dependencies": ["click>=8.1", "uvloop>=0.22; sys_platform != 'win32'"],
    "optional-dependencies": {
        "engine": ["torch>=2.11,<2.14", "Pillow>=11"],
        "http2": ["httpx[http2]"],
        "check": ["pytest>=8.4", "pillow>=11"],
        "check-engine": [],
        "fuzz": [],
    },
}
PINS = "# pinned\npillow==13.0.0\npytest==9.2.0\ntorch==2.13.0\n"


def test_what_runs_has_its_lower_bound_and_what_tests_has_its_pin() -> None:
    tests = ["pytest==9.2.0", "torch==2.13.0"]
    assert list(lowest_versions(PROJECT, PINS)) == ["click==8.1", "pillow==11", "uvloop==0.22", *tests]
    assert list(lowest_versions(PROJECT, PINS, ["engine"])) == ["pillow==11", *tests]


def test_every_bound_of_what_runs_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {line.partition("==")[0] for line in lowest_versions(project, (ROOT / "constraints.txt").read_text())}
    assert {"litestar", "msgspec", "tokenizers", "transformers", "numpy", "grpcio", *PINNED} <= names
