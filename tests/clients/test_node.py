"""The clients for Node, run by Node's test runner: `node/*.test.mjs`.

npm installs the version of Node that they need on Linux; elsewhere it is the machine's. Skipped without Node, or if npm
could not install their packages (`make` tries).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import LIMIT, Server
from tests.missing_tools import missing

HERE = Path(__file__).parent / "node"
INSTALLED = HERE / "node_modules/.package-lock.json"  # npm writes it last
NODE = next(HERE.glob("node_modules/node-*/bin/node"), None) or shutil.which("node")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.node,
    pytest.mark.skipif(NODE is None, reason=missing("node")),
    pytest.mark.skipif(not INSTALLED.exists(), reason=missing("npm packages of tests/clients/node")),
]


@pytest.mark.parametrize("file", sorted(path.name for path in HERE.glob("*.test.mjs")))
def test_node(server: Server, file: str) -> None:
    variables = {"INTERLINGUA_URL": server.url, "INTERLINGUA_MODEL": server.model}
    run = subprocess.run(
        [str(NODE), "--test", file], cwd=HERE, env=os.environ | variables, capture_output=True, text=True, timeout=LIMIT
    )
    assert run.returncode == 0, run.stdout + run.stderr
