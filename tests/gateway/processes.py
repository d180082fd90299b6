"""`gateway serve` as a user runs it: real processes, a real port."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 300  # seconds for anything: a busy machine imports torch slowly

SCRIPTED = """
[server]
workers = {workers}
[backends.s]
kind = "scripted"
[endpoints.echo]
experiment = {{ feedback = {{ liked = "higher" }} }}
served_entities = [{{ name = "echo-1", backend = "s", model = "echo" }}]
[endpoints.slow]
served_entities = [{{ name = "slow-1", backend = "s", model = "slow" }}]
[endpoints.hang]
served_entities = [{{ name = "hang-1", backend = "s", model = "hang" }}]
"""


@dataclass
class Gateway:
    """A running `gateway serve`; it has a `url` once it can answer."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    def greets(self) -> bool:
        """Whether it has said where it listens, and that it can answer."""
        text = self.log.read_text()
        if found := re.search(r"^Interlingua \S+ on (https?://\S+) ", text, re.MULTILINE):
            self.url = found[1]
        return bool(self.url) and re.search(r"^Ready after", text, re.MULTILINE) is not None

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """Post JSON, and read all of the answer."""
        with self.open(path, body) as answer:
            return json.load(answer)

    def open(self, path: str, body: dict[str, Any]) -> Any:
        """Post JSON, and leave the answer to be read."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        return urllib.request.urlopen(request, timeout=LIMIT)

    def children(self, of: int | None = None) -> dict[int, str]:
        """Process ids and command lines of the processes below."""
        pid = of or self.process.pid
        found: dict[int, str] = {}
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            try:
                line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[int(child)] = line
        return found

    def workers(self) -> list[int]:
        return [pid for pid, line in self.children().items() if "gateway.process.worker" in line]

    def engines(self) -> list[int]:
        return [pid for pid, line in self.children().items() if "native.engine" in line]

    @contextmanager
    def only(self, worker: int) -> Iterator[None]:
        """Halt all other workers, so that this one answers."""
        others = [pid for pid in self.workers() if pid != worker]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: all(state(pid) == "T" for pid in others), self.log)
        try:
            yield
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT)


@contextmanager
def serving(*arguments: str, env: dict[str, str] | None = None, log: Path) -> Iterator[Gateway]:
    """`gateway serve` with the given arguments, ready to answer; killed at the end if it still runs."""
    gateway = start(*arguments, env=env, log=log)
    try:
        until(lambda: gateway.greets() or gateway.process.poll() is not None, log)
        assert gateway.process.poll() is None, log.read_text()
        yield gateway
    finally:
        if gateway.process.poll() is None and (code := gateway.stop()) != 0:
            raise AssertionError(f"exit code {code}\n{log.read_text()}")


def start(*arguments: str, env: dict[str, str] | None = None, log: Path) -> Gateway:
    """The same, not ready yet."""
    command = [str(Path(sys.executable).parent / "gateway"), "serve", "--port", "0", *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | (env or {}))
    return Gateway(process, log)


def status(url: str) -> int:
    """The status of a GET, 0 if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=LIMIT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    return state(pid) not in ("", "Z")


def state(pid: int) -> str:
    """What the kernel says that the process does: R, S, T (stopped), Z …; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def until(condition: Callable[[], bool], log: Path) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
