"""Runs the programs of examples/clients against the test server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import LIMIT, Server

pytestmark = pytest.mark.clients

FOLDER = Path(__file__).parents[2] / "examples/clients"
SHOWN = {
    "anthropic_messages.py": ("stop reason: ", "tokens: ", "counted ahead: ", "error: 404 not_found_error"),
    "databricks_endpoint.py": ("endpoint: interlingua (READY)", "tokens: ", "error: "),
    "openai_chat.py": ("finish reason: stop", "tokens: ", "tool call: get_weather({", "error: 404 model_not_found"),
    "tgi.py": ("finish reason: ", "first tokens: [(", "error: "),
    "triton.py": ("ready: True", "inputs: ['text_input'", "error: "),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_program_shows_what_it_says(server: Server, name: str) -> None:
    command = [sys.executable, str(FOLDER / name), server.url, server.model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [words for words in SHOWN[name] if not any(line.startswith(words) for line in lines)] == []


def test_every_program_is_run() -> None:
    elsewhere = {"ab_test.py"}  # tests/test_examples.py
    assert {path.name for path in FOLDER.glob("*.py")} == {*SHOWN, *elsewhere}
