"""Several native backends in one fresh process, started at once, as a gateway starts those of two arms."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

CODE = """
import asyncio
from backends.native.backend import NativeBackend
from tests.backends.native.fake_engine import FakeEngine

async def main():
    backends = [NativeBackend(name, connect=FakeEngine().connect) for name in "abcd"]
    await asyncio.gather(*(backend.start() for backend in backends))
    print(len({backend.capabilities.tokenizer for backend in backends}))
    for backend in backends:
        await backend.aclose()

asyncio.run(main())
"""


def test_backends_that_start_at_once_all_start() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=600)
    assert done.stdout == "1\n", done.stderr
