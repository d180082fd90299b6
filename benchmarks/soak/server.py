"""The server under the soak: its life after life, and what its processes take."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from statistics import linear_regression, mean

from benchmarks.gateway import descendants

CONFIG = """
[server]
workers = 2
hung_after = 10.0
[server.limits]
write_stall = 5.0
body_idle = 3.0
[backends.local]
kind = "native"
heartbeat = 0.5
hung_after = 15.0
warm_engine = {warm_engine}
[backends.s]
kind = "scripted"
[endpoints.demo]
served_entities = [{{ name = "demo", backend = "local" }}]
[endpoints.echo]
served_entities = [{{ name = "echo", backend = "s", model = "echo" }}]
"""
ADDED = '[endpoints.added]\nserved_entities = [{ name = "echo", backend = "s", model = "echo" }]\n'
"""What every second reload adds and the next one takes away."""
READY = 600.0
"""Seconds in which the server must be ready: on a machine that does other work, an engine imports for a minute."""
LAST = 120.0
"""Seconds in which all processes of a killed supervisor must have ended."""
_PAUSE = 0.1
_WORDS = {"worker": "gateway.process.worker", "engine": "native.engine"}
Usage = tuple[float, float, float]


class Server:
    """A server that is started again when its supervisor is killed.

    Args:
        folder: for its configuration and logs; its temporary files are in `folder/tmp`.
        port: where it listens.
        warm_engine: the value of the native backend's option, in TOML.

    Attributes:
        usage: the database of records.
        lives: the log of each start; the last one is of the server that runs.
        longest_end: seconds until the last process of a killed supervisor had ended, at most, and what it was.
        outlived: processes that did not end in time.
    """

    def __init__(self, folder: Path, port: int, warm_engine: str) -> None:
        self._folder = folder
        self._port = port
        self.usage = folder / "usage.sqlite"
        self._base = f'{CONFIG.format(warm_engine=warm_engine)}[usage]\ndatabase = "{self.usage}"\n'
        self._config = folder / "gateway.toml"
        self._config.write_text(self._base)
        (folder / "tmp").mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self.lives: list[Path] = []
        self.longest_end = (0.0, "")
        self.outlived: list[int] = []

    @property
    def pid(self) -> int:
        """The supervisor's."""
        assert self._process is not None
        return self._process.pid

    def of(self, kind: str) -> list[int]:
        """Workers or engines that run now."""
        return [child for child in _children(self.pid) if _WORDS[kind] in _read_text(f"/proc/{child}/cmdline")]

    async def start(self) -> None:
        """Start it, and wait until it is ready. While workers of a killed supervisor listen, it cannot: try again."""
        deadline = time.monotonic() + READY
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                self._spawn()
            await asyncio.sleep(_PAUSE)
            if await self.is_ready():
                return
        raise RuntimeError(f"the server did not get ready:\n{self.lives[-1].read_text()[-4000:]}")

    async def is_ready(self) -> bool:
        """Whether all its endpoints can answer."""
        with suppress(OSError):
            return bool(await asyncio.to_thread(self.get, "/health/ready") is not None)
        return False

    def get(self, path: str) -> str:
        """The body of an answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    async def kill(self) -> None:
        """Kill the supervisor, and start it again at once; all of its processes must end by themselves."""
        assert self._process is not None
        left = descendants(self.pid)
        self._process.kill()
        self._process.wait()
        ending = asyncio.create_task(self._await_end(left))
        self._endings.add(ending)
        await self.start()

    def reload(self) -> None:
        """Have it read a configuration that differs from the one before."""
        text = self._config.read_text()
        self._config.write_text(self._base if text != self._base else self._base + ADDED)
        os.kill(self.pid, signal.SIGHUP)

    async def stop(self) -> list[str]:
        """Stop it. What is left of it, of its killed predecessors, and in its folder for temporary files."""
        assert self._process is not None
        everyone = descendants(self.pid)
        self._process.terminate()
        await asyncio.to_thread(self._process.wait, READY)
        await asyncio.gather(*self._endings)
        left = [f"process {pid} is left" for pid in (*filter(_lives, everyone), *self.outlived)]
        left += [f"{path.name} is left" for path in (self._folder / "tmp").iterdir()]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                left.append(f"something listens on port {self._port}")
        return left

    def _spawn(self) -> None:
        self.lives.append(self._folder / f"log-{len(self.lives)}")
        port = ("--port", str(self._port))
        command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(self._config), *port]
        with self.lives[-1].open("wb") as log:
            # torch makes the latter folder whenever it is imported, and leaves it: one for each user.
            folders = {"TMPDIR": str(self._folder / "tmp"), "TORCHINDUCTOR_CACHE_DIR": str(self._folder / "torch")}
            env = os.environ | folders
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=env)

    async def _await_end(self, pids: list[int]) -> None:
        began, last = time.monotonic(), ""
        while (left := [*filter(_lives, pids)]) and time.monotonic() < began + LAST:
            last = _read_text(f"/proc/{left[-1]}/cmdline").replace("\0", " ") or last
            await asyncio.sleep(_PAUSE)
        self.longest_end = max(self.longest_end, (time.monotonic() - began, last))
        self.outlived += left


class Samples:
    """What the server's processes take over time: of each kind the largest process, of children the sum.

    Args:
        server: the server.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._taken: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def take(self) -> None:
        """Note resident memory, descriptors and threads of each kind of process, and the workers' tasks."""
        now, pid = time.monotonic(), self._server.pid
        workers, engines = self._server.of("worker"), self._server.of("engine")
        for kind, pids in {"supervisor": [pid], "worker": workers, "engine": engines}.items():
            for what, values in zip(_MEASURES, zip(*map(_usage, pids), strict=True), strict=False):
                self._taken[f"{kind}: {what}"].append((now, max(values)))
        others = [each for each in descendants(pid) if each not in (*workers, *engines)]
        self._taken["children: processes"].append((now, len(others)))
        self._taken["children: MB resident"].append((now, sum(_usage(each)[0] for each in others)))
        with suppress(OSError):
            self._taken["workers: tasks"].append((now, total(self._server.get("/metrics"), "gw_event_loop_tasks")))

    def trend(self, since: float) -> list[str]:
        """Lines with the mean, the extremes and the slope an hour of what was taken since then."""
        lines = []
        for name, taken in self._taken.items():
            calm = [(at, value) for at, value in taken if at >= since]
            if len(calm) < 3:
                continue
            values = [value for _, value in calm]
            slope = linear_regression(*zip(*calm, strict=True)).slope * 3600
            low, high = min(values), max(values)
            lines.append(f"  {name:26} mean {mean(values):7.1f}, {low:7.1f} to {high:7.1f}, {slope:+8.2f} an hour")
        return lines


_MEASURES = ("MB resident", "descriptors", "threads")


def total(metrics: str, name: str) -> float:
    """The sum of a metric over its labels."""
    lines = (line for line in metrics.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _children(pid: int) -> list[int]:
    return [int(child) for child in _read_text(f"/proc/{pid}/task/{pid}/children").split()]


def _lives(pid: int) -> bool:
    """Whether a process runs, in any state but that of a zombie."""
    stat = _read_text(f"/proc/{pid}/stat")
    return bool(stat) and stat.rpartition(")")[2].split()[0] != "Z"


def _usage(pid: int) -> Usage:
    status = dict(line.split(":", 1) for line in _read_text(f"/proc/{pid}/status").splitlines() if ":" in line)
    with suppress(OSError):
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return int(status.get("VmRSS", "0 kB").split()[0]) / 1024, descriptors, int(status.get("Threads", 0))
    return 0.0, 0, 0


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
