"""The real server, once for all client tests: `gateway serve` with the bundled model on a free port.

Runs in two environments (see the Makefile), of which one does not hold the gateway: it is found by
INTERLINGUA_GATEWAY, or beside the interpreter that runs the tests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.chromium import browser
from tests.clients.console import CONFIG, HOSTILE, Console

LIMIT = 180  # seconds for any step; a cold machine imports torch and transformers first
ATTEMPTS = 50
"""How often a stream that must come in several chunks is asked for: a slow machine joins what waits into one chunk."""
CAPITAL = "What is the capital of France?"


class Server:
    """A running gateway: its base `url` and the name of the `model` it serves."""

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self.model = model

    @property
    def address(self) -> str:
        """Host and port, for clients that add the scheme themselves."""
        return self.url.removeprefix("http://")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("gateway") / "log") as url:
        models = json.load(urllib.request.urlopen(f"{url}/v1/models"))
        yield Server(url, models["data"][0]["id"])


@pytest.fixture(scope="session")
def console_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server that the tests of the console share."""
    folder = tmp_path_factory.mktemp("console")
    (folder / "gateway.toml").write_text(CONFIG.format(folder=folder, hostile=json.dumps(HOSTILE)))
    with serving(folder / "log", "--config", str(folder / "gateway.toml"), env={"CONSOLE_ADMIN_KEYS": "root"}) as url:
        yield url


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """One page for all tests of the console: a browser takes seconds to start."""
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield Console(page)


@pytest.fixture
def console(opened: Console, console_url: str) -> Iterator[Console]:
    """The console of the shared server."""
    if opened.url != console_url:
        opened.open(console_url)
    opened.page.errors.clear()  # of a test that failed
    yield opened
    assert opened.page.errors == []
    assert not opened.page.run("'hacked' in window")


@contextmanager
def serving(log: Path, *arguments: str, env: dict[str, str] | None = None, port: int = 0) -> Iterator[str]:
    """`gateway serve` on a port, or on a free one, ready to answer; yields its URL."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [_gateway(), "serve", "--host", "127.0.0.1", "--port", str(port), *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"} | (env or {}),
        )
    try:
        yield _greeting_url(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert code == 0, log.read_text()


def _gateway() -> str:
    named = os.environ.get("INTERLINGUA_GATEWAY")
    return str(Path(named).absolute()) if named else str(Path(sys.executable).parent / "gateway")


def _greeting_url(process: subprocess.Popen[bytes], log: Path) -> str:
    """The URL that the gateway prints once it can answer."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the gateway ended with {process.returncode}:\n{log.read_text()}")
        if found := re.search(
            r"^Interlingua \S+ on (http://\S+) .*^Ready after", log.read_text(), re.MULTILINE | re.DOTALL
        ):
            return found[1]
        time.sleep(0.1)
    pytest.fail(f"the gateway was not ready within {LIMIT} s:\n{log.read_text()}")
