"""The page's files: there without a key, and nothing in them is anybody else's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gateway.http.ui
from gateway.config import ServerSection
from tests.gateway.serving import running, scripted

FILES = {
    "/ui": "text/html",
    "/ui/style.css": "text/css",
    "/ui/app.js": "text/javascript",
    "/docs": "text/html",
    "/docs/docs.js": "text/javascript",
}
VENDORED = {"/docs/swagger-ui.css": "text/css", "/docs/swagger-ui-bundle.js": "text/javascript"}


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES)
async def test_the_files_are_served_without_a_key_and_name_no_other_host(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGE_KEYS", "guest")
    app, _ = scripted("echo", server=ServerSection(keys_env="PAGE_KEYS"))
    async with running(app) as client:
        answer = await client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, f"{FILES[path]}; charset=utf-8")
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert not re.search(r"https?:|//[a-z]+\.", answer.text)
        assert "innerHTML" not in answer.text
        assert (await client.get("/ui/absent.js")).status_code == 404
        assert (await client.get("/ui/")).status_code == 200


@pytest.mark.parametrize("path", VENDORED)
async def test_the_viewer_is_served_under_the_same_policy(path: str) -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        answer = await client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, f"{VENDORED[path]}; charset=utf-8")
        assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_the_viewer_has_its_licence_and_is_small() -> None:
    folder = Path(gateway.http.ui.__file__).parent / "docs" / "swagger-ui"
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert re.match(r"Swagger UI \d+\.\d+\.\d+ ", (folder / "README.md").read_text())
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000


async def test_a_browser_at_the_root_is_sent_to_the_page() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        found = await client.get("/", headers={"accept": "text/html,*/*;q=0.8"})
        assert (found.status_code, found.headers["location"]) == (307, "/ui")
        # TGI's health check.
        assert (await client.get("/")).status_code == 200
