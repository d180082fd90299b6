"""The console of a server whose requests all need a key; and a server that goes away and comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.clients.conftest import serving
from tests.clients.console import MARKS, Console
from tests.clients.visitor import Visitor

pytestmark = MARKS

KEYED = """
[server]
admin_keys_env = "CONSOLE_ADMIN_KEYS"
keys_file = "{folder}/keys.json"
[backends.s]
kind = "scripted"
[endpoints.chat]
served_entities = [{{ name = "only", backend = "s", model = "scripted" }}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("keyed")
    (made / "gateway.toml").write_text(KEYED.format(folder=made))
    (made / "keys.json").write_text('{"keys": []}')
    return made


def server(folder: Path, port: int = 0) -> AbstractContextManager[str]:
    settings = {"CONSOLE_ADMIN_KEYS": "root"}
    return serving(folder / "log", "--config", str(folder / "gateway.toml"), env=settings, port=port)


@pytest.fixture
def console(opened: Console) -> Iterator[Console]:
    yield opened
    assert not opened.page.run("'hacked' in window")


def test_a_key_is_made_and_revoked_and_the_server_goes_and_comes_back(console: Console, folder: Path) -> None:
    with server(folder) as url:
        console.open(url)
        console.check_layout()
        console.fill("API key", "root")
        console.click("Log in")
        console.reads("Administrator", ".who")
        console.view("Keys")
        console.click("New key")
        console.fill("Name", "colleague")
        console.fill("Requests a minute", "30")
        console.click("Make the key")
        console.reads("shown this once", "[aria-label=Keys]")
        console.reads("30 requests a minute", "[aria-label=Keys] table")
        console.click("Revoke colleague")
        console.check_layout()
        console.click("Cancel")
        assert console.page.run("document.activeElement.getAttribute('aria-label')") == "Revoke colleague"
        # A newcomer revokes it, by labels alone.
        me = Visitor(console.page)
        me.click("link", "Chat")
        me.click("link", "Keys")
        me.click("button", "Revoke colleague")
        me.click("button", "Revoke colleague for good")
        me.sees("The key colleague was revoked.")
        assert json.loads((folder / "keys.json").read_text()) == {"keys": []}
    console.reads("The server does not answer.")
    console.check_layout()
    with server(folder, int(url.rpartition(":")[2])):
        console.reads("The server is back.")
        assert "does not answer" not in console.text("body")
        console.view("Requests")
        console.reads("No request has ended yet.")
    console.page.errors.clear()  # of the time without a server
