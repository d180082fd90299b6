"""The page's files: there without a key, and nothing in them is anybody else's."""

from __future__ import annotations

import re

import pytest

from gateway.config import ServerSection
from tests.gateway.serving import running, scripted

FILES = {"/ui": "text/html", "/ui/style.css": "text/css", "/ui/app.js": "text/javascript"}


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
