"""The pages' files: there without a key, none of them is anybody else's, and each is sent once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gateway.http.ui
from gateway.config import ServerSection
from gateway.http.ui import console_files
from tests.gateway.serving import running, scripted

FOLDER = Path(gateway.http.ui.__file__).parent
KINDS = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg",
}
FILES = dict(console_files())
OWN = {path: file for path, file in FILES.items() if "vendor" not in file.parts}
DOCS = {
    "/docs": "text/html",
    "/docs/docs.js": "text/javascript",
    "/docs/swagger-ui.css": "text/css",
    "/docs/swagger-ui-bundle.js": "text/javascript",
}


@pytest.mark.slow
async def test_the_files_are_served_without_a_key_under_a_strict_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGE_KEYS", "guest")
    app, _ = scripted("echo", server=ServerSection(keys_env="PAGE_KEYS"))
    async with running(app) as client:
        for path in (*FILES, *DOCS):
            answer = await client.get(path)
            kind = KINDS[FILES[path].suffix] if path in FILES else DOCS[path]
            assert answer.status_code == 200, path
            assert answer.headers["content-type"].startswith(kind), path
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'self'; img-src 'self' data:;")
            assert ("require-trusted-types-for 'script'" in policy) == (path in FILES), path
            again = await client.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b""), path
        assert (await client.get("/ui/absent.js")).status_code == 404
        assert (await client.get("/ui/")).status_code == 200


@pytest.mark.parametrize("path", OWN)
def test_a_file_names_no_other_host_and_writes_no_markup(path: str) -> None:
    text = OWN[path].read_text()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    assert text.count("\n") <= 400


def test_every_module_is_imported_and_every_import_exists() -> None:
    found = {FOLDER / "ui/main.js", FOLDER / "ui/shared/theme-early.js"}
    todo = [*found]
    while todo:
        file = todo.pop()
        for name in re.findall(r'from "(\.[^"]+)"', file.read_text()) if "vendor" not in file.parts else ():
            imported = (file.parent / name).resolve()
            assert imported.is_file(), (file, name)
            if imported not in found:
                found.add(imported)
                todo.append(imported)
    assert {file for file in FILES.values() if file.suffix in (".js", ".mjs")} == found
    linked = re.findall(r'href="/(ui/styles/[^"]+)"', (FOLDER / "ui/index.html").read_text())
    assert {f"{FOLDER}/{name}" for name in linked} == {str(file) for file in FILES.values() if "styles" in file.parts}


def test_others_files_have_their_licences_and_are_small() -> None:
    swagger, vendored = FOLDER / "docs" / "swagger-ui", FOLDER / "ui" / "vendor"
    assert "Apache License" in (swagger / "LICENSE").read_text()
    assert re.match(r"Swagger UI \d+\.\d+\.\d+ ", (swagger / "README.md").read_text())
    assert sum(file.stat().st_size for file in swagger.iterdir()) < 2_000_000
    listed = (vendored / "README.md").read_text()
    assert all(f"`{file.name}`" in listed for file in vendored.iterdir() if file.name != "README.md")
    assert sum(file.stat().st_size for file in vendored.iterdir()) < 400_000


async def test_a_browser_at_the_root_is_sent_to_the_page() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        found = await client.get("/", headers={"accept": "text/html,*/*;q=0.8"})
        assert (found.status_code, found.headers["location"]) == (307, "/ui")
        # TGI's health check.
        assert (await client.get("/")).status_code == 200
