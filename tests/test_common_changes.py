"""The table of common changes in docs/architecture.md names files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_files_of_common_changes_exist() -> None:
    table = PAGE.split("\n## Where to make common changes\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    paths = [path for _, touched in rows for path in re.findall(r"`([\w/.]*[/.][\w/.]*)`", touched)]
    assert len(rows) > 10
    assert len(paths) > 20
    for path in paths:
        found = ROOT / path
        assert found.is_dir() if path.endswith("/") else found.is_file(), path
