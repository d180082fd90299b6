"""The site of the docs builds without a broken link, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.missing_tools import missing
from tools.docs_site import inside

ROOT = Path(__file__).parent.parent
MKDOCS = ROOT / ".venv-tools/bin/mkdocs"


@pytest.mark.parametrize(
    ("markdown", "seen"),
    [
        ("[code](../gateway/cli/serve.py)", "code"),
        ("[`code`](../gateway)", "`code`"),
        ("[keys](keys.md#limits), [code](../README.md#ask-it)", "[keys](keys.md#limits), code"),
        ("[site](https://example.com/a) [here](#here)", "[site](https://example.com/a) [here](#here)"),
        ("![drawing](architecture.svg)", "![drawing](architecture.svg)"),
    ],
)
def test_links_that_leave_the_docs_become_text(markdown: str, seen: str) -> None:
    assert inside(markdown, "page.md") == seen
    assert inside("[up](../keys.md) [out](../../README.md)", "guides/page.md") == "[up](../keys.md) out"


@pytest.mark.slow
@pytest.mark.skipif(not MKDOCS.exists(), reason=missing("make .venv-tools/.installed"))
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [str(MKDOCS), "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    pages = list(tmp_path.glob("**/*.html"))
    assert len(pages) >= len(list(ROOT.glob("docs/**/*.md")))
    loaded = re.compile(r"<(?:script|link|img|iframe)[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^\"'> ]+")
    found = {
        match[0] for page in pages for match in loaded.finditer(page.read_text()) if 'rel="canonical"' not in match[0]
    }
    assert found == set()
