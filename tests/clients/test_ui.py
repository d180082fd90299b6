"""The description of the API at `/docs` in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.chromium import PATH, browser
from tests.clients.conftest import Server
from tests.missing_tools import missing

pytestmark = [pytest.mark.clients, pytest.mark.skipif(PATH is None, reason=missing("chromium"))]


def test_the_api_is_shown_by_a_viewer_that_loads_nothing_from_elsewhere(server: Server, tmp_path: Path) -> None:
    url = server.url
    with browser(tmp_path) as page:
        page.open(f"{url}/docs")
        page.until("document.querySelectorAll('.opblock-tag').length >= 8")
        page.run("document.querySelector('#operations-tag-openai').click()")
        page.until("document.querySelectorAll('.opblock').length > 50")
        assert "POST" in page.run("document.querySelector('#operations-openai-openai_chat').innerText")
        page.run("document.querySelector('#operations-openai-openai_chat button').click()")
        page.until("document.querySelector('#operations-openai-openai_chat').innerText.includes('unauthorized')")
        loaded = page.run("performance.getEntriesByType('resource').map(entry => entry.name)")
        assert [name for name in loaded if not name.startswith((url, "data:"))] == []
        assert page.errors == []
