"""A machine for the shell blocks that set one up: bash runs them, with a folder in place of `/`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.gateway.processes import LIMIT
from tests.shell.blocks import ROOT, Block

_ROOTED = re.compile(r"(?<=[\s\"'=])/(?=(?:etc|mnt|models|opt|var)/)|^/(?=opt/)", re.MULTILINE)
"""The beginning of a path of the machine; paths inside containers stand after a colon."""
_STAND_IN = Path(__file__).with_name("stand_in.py")


class Call(msgspec.Struct, frozen=True):
    """What a stand-in was called with; see `stand_in.py`."""

    command: str
    options: dict[str, list[str]]
    arguments: list[str]
    environment: dict[str, str]


@dataclass(slots=True, eq=False)
class Machine:
    """A folder in place of a machine's root, and programs in place of some of its own.

    Attributes:
        folder: the root.
        here: where blocks are run: a folder with the repository's `deploy`.
        environment: variables beside those of this process.
    """

    folder: Path
    here: Path = field(init=False)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.here = self.folder / "here"
        self.here.mkdir(parents=True)
        shutil.copytree(ROOT / "deploy", self.here / "deploy")
        self._programs.mkdir()
        self.program("curl", f'{shutil.which("curl")} --silent --fail-with-body "$@" && echo')

    @property
    def _programs(self) -> Path:
        return self.folder / "programs"

    @property
    def _calls(self) -> Path:
        return self.folder / "calls"

    def program(self, name: str, script: str) -> None:
        """Put a shell script in the place of a program."""
        file = self._programs / name
        file.write_text(f"#!/bin/sh\nset -e\n{script}\n")
        file.chmod(0o755)

    def stand_in(self, name: str) -> None:
        """Put a stand-in in the place of a program, which only checks its words."""
        self.program(name, f'exec {sys.executable} -I {_STAND_IN} {name} "$@"')

    def calls(self) -> list[Call]:
        """The calls of stand-ins so far."""
        return [msgspec.json.decode(line, type=Call) for line in self._calls.read_bytes().splitlines()]

    def start(self, block: Block, addresses: Mapping[str, str] | None = None, **more: Any) -> subprocess.Popen[bytes]:
        """Have bash run a block, in a process group of its own.

        Args:
            block: of a page.
            addresses: what stands in it, and what is used in its place.
            more: for the process.
        """
        code = _ROOTED.sub(f"{self.folder}/", block.code)
        for name, address in (addresses or {}).items():
            assert name in code, name
            code = code.replace(name, address)
        path = os.pathsep.join((str(self._programs), str(Path(sys.executable).parent), os.environ["PATH"]))
        environment = os.environ | self.environment | {"PATH": path, "CALLS": str(self._calls)}
        command = ["bash", "-euo", "pipefail", "-c", code]
        return subprocess.Popen(command, cwd=self.here, env=environment, start_new_session=True, **more)

    @contextmanager
    def running(self, block: Block, addresses: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Have a block run until the end of the context; its output goes to a file."""
        with log.open("wb") as out:
            process = self.start(block, addresses, stdout=out, stderr=out)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(LIMIT)

    def run(
        self, block: Block, addresses: Mapping[str, str] | None = None, status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a block to its end.

        Raises:
            AssertionError: it ended with another status.
        """
        with self.start(block, addresses, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            shown, errors = (each.decode() for each in process.communicate(timeout=LIMIT))
        assert process.returncode == status, f"{block.page}: {process.returncode}: {shown}{errors}"
        return subprocess.CompletedProcess(process.args, status, shown, errors)
