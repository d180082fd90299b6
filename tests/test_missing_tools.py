"""A skip for a missing tool fails where `INTERLINGUA_REQUIRE_TOOLS` is set, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = {
    "test_mark.py": """
import pytest
from tests.missing_tools import missing
@pytest.mark.skipif(True, reason=missing("a browser"))
def test_it(): pass
@pytest.mark.skip(reason="not on this platform")
def test_another(): pass
""",
    "test_module.py": """
import pytest
from tests.missing_tools import missing
pytest.importorskip("no_such_package_anywhere", reason=missing("a package"))
""",
}


def run(folder: Path, **environment: str) -> str:
    for name, source in MODULES.items():
        (folder / name).write_text(source)
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -p tests.missing_tools -p no:cacheprovider -p no:faker -ra\n"
    )
    inherited = {name: value for name, value in os.environ.items() if name != "INTERLINGUA_REQUIRE_TOOLS"}
    command = [sys.executable, "-m", "pytest", "-c", str(folder / "pytest.ini"), "--continue-on-collection-errors"]
    done = subprocess.run(
        [*command, str(folder)], cwd=ROOT, env=inherited | environment, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.slow
def test_a_missing_tool_is_a_skip_with_its_reason(tmp_path: Path) -> None:
    output = run(tmp_path)
    assert "3 skipped" in output
    assert "missing tool: a browser" in output
    assert "missing tool: a package" in output


@pytest.mark.slow
def test_a_missing_tool_is_a_failure_if_tools_are_required(tmp_path: Path) -> None:
    output = run(tmp_path, INTERLINGUA_REQUIRE_TOOLS="1")
    assert "1 skipped, 2 errors" in output
    assert "missing tool: a browser" in output
    assert "missing tool: a package" in output
