"""The page at /ui in a browser: reports, slider, playground."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.chromium import PATH, Page, browser
from tests.clients.conftest import serving
from tests.missing_tools import missing

pytestmark = [pytest.mark.clients, pytest.mark.skipif(PATH is None, reason=missing("chromium"))]

CONFIG = """
[server]
admin_keys_env = "UI_ADMIN_KEYS"
state_file = "{state}"
[backends.s]
kind = "scripted"
[endpoints.chat]
served_entities = [
  {{ name = "a", backend = "s", model = "echo", traffic_percentage = 80 }},
  {{ name = "b", backend = "s", model = "scripted", traffic_percentage = 20, paired = {{ share = 1.0 }} }},
]
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("ui")
    (folder / "gateway.toml").write_text(CONFIG.format(state=folder / "state.json"))
    with serving(folder / "log", "--config", str(folder / "gateway.toml"), env={"UI_ADMIN_KEYS": "root"}) as url:
        yield url


@pytest.fixture
def page(url: str, tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path) as page:
        page.open(f"{url}/ui")
        page.until("document.querySelectorAll('article').length === 1")
        yield page


def split(url: str) -> list[int]:
    with urllib.request.urlopen(f"{url}/api/2.0/serving-endpoints/chat") as answer:
        return [route["traffic_percentage"] for route in json.load(answer)["config"]["traffic_config"]["routes"]]


def slide(page: Page, share: int) -> None:
    """Move the first arm's slider and apply the change."""
    page.run(
        "{ const slider = document.querySelector('input[type=range]');"
        f"slider.value = {share}; slider.dispatchEvent(new Event('input'));"
        "document.querySelector('article button').click(); }"
    )


def test_the_slider_changes_the_split_with_the_admin_key(url: str, page: Page) -> None:
    assert page.run("[...document.querySelectorAll('output')].map((o) => o.textContent)") == ["80 %", "20 %"]
    slide(page, 30)
    assert "key" in page.until("document.getElementById('error').textContent")
    assert split(url) == [80, 20]
    page.errors.clear()  # the refusal
    page.run("document.getElementById('key').value = 'root'")
    slide(page, 30)
    page.until("document.querySelector('article p').textContent.endsWith('version 2')")
    assert split(url) == [30, 70]
    assert page.run("[...document.querySelectorAll('output')].map((o) => o.textContent)") == ["30 %", "70 %"]
    assert page.errors == []


def test_reports_are_shown_with_their_decisions(url: str, page: Page) -> None:
    for number in range(600):
        body = {"model": "chat", "user": f"user {number}", "messages": [{"role": "user", "content": "Hi"}]}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        urllib.request.urlopen(request).read()
    page.until("document.querySelectorAll('.interval').length === 7")
    words = page.run("[...document.querySelectorAll('tr td:last-child span')].map((span) => span.textContent)")
    assert "higher" in words  # completion tokens
    pairs = page.run("document.querySelector('.pairs').innerText")
    assert re.search(r"b paired with a\s+\d+ pairs", pairs), pairs
    assert re.search(r"equal tokens before the first difference\s+0: \d+", pairs), (
        pairs
    )  # an echo differs from the first token on
    assert re.search(r"token agreement\s+0\b", pairs), pairs
    assert re.search(r"answers of b\s+-\d", pairs), pairs
    assert page.errors == []


def test_the_playground_shows_each_protocols_raw_stream(page: Page) -> None:
    page.run("document.querySelector('#playground button').click()")
    page.until("document.querySelectorAll('#streams article').length === 5")
    shown = {}
    for title, end in (
        ("OpenAI", "data: [DONE]"),
        ("Databricks", "data: [DONE]"),
        ("TGI", '"generated_text":"'),
        ("Triton", "data: "),
        ("Anthropic", "message_stop"),
    ):
        article = f"[...document.querySelectorAll('#streams article')].find((a) => a.innerText.startsWith('{title}'))"
        page.until(f"{article}.lastChild.textContent.includes({json.dumps(end)})")
        shown[title] = page.run(f"{article}.innerText")
    assert all("POST /" in text and "200  served by" in text for text in shown.values()), shown
    assert page.errors == []


def test_the_api_is_shown_by_a_viewer_that_loads_nothing_from_elsewhere(url: str, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        page.open(f"{url}/docs")
        page.until("document.querySelectorAll('.opblock').length > 50")
        assert "POST" in page.run("document.querySelector('#operations-openai-openai_chat').innerText")
        page.run("document.querySelector('#operations-openai-openai_chat button').click()")
        page.until("document.querySelector('#operations-openai-openai_chat').innerText.includes('unauthorized')")
        loaded = page.run("performance.getEntriesByType('resource').map(entry => entry.name)")
        assert [name for name in loaded if not name.startswith((url, "data:"))] == []
        assert page.errors == []
