"""Runs the examples of the README and of docs/images.md as they stand, with the address of the test server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import LIMIT, Server

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[2]
BLOCKS = {
    match["name"]: match["code"]
    for match in re.finditer(
        r"\*\*(?P<name>\w+)\*\*[^\n]*\n\n```python\n(?P<code>.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
}
IMAGE_EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/images.md").read_text(), re.DOTALL)


def test_there_is_an_example_for_each_protocol() -> None:
    assert set(BLOCKS) == {"OpenAI", "TGI", "Databricks", "Triton", "Anthropic", "Gemini", "Ollama"}


@pytest.mark.parametrize(
    "code", [*BLOCKS.values(), *IMAGE_EXAMPLES], ids=[*BLOCKS, *(["images"] * len(IMAGE_EXAMPLES))]
)
def test_example_runs(server: Server, code: str) -> None:
    code = code.replace("127.0.0.1:8000", server.address)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
