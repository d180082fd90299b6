"""Starts what serves and keeps it alive: the listening sockets, one engine per native backend, N workers.

Single-threaded and synchronous: it has nothing to do with requests. Children die with it, however it dies: workers
watch their standard input, which it holds open, and the kernel sends engines a signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gateway.app import backend_class
from gateway.config import Config, ConfigError
from gateway.worker import Orders

log = structlog.get_logger()

_PATIENCE = 5.0  # seconds that an engine gets to end after the workers have
_POLL = 0.05
_FIRST_DELAY = 0.5  # seconds before a child is started a second time
_LASTED = 5.0  # seconds of life after which a child's end is its first again
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True, eq=False)
class Child:
    """A process that is started again whenever it ends: at once the first time, later and later if it does not last."""

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    longest_delay: float
    process: subprocess.Popen[bytes] = field(init=False)
    delay: float = 0.0
    began: float = 0.0
    again_at: float | None = None

    def __post_init__(self) -> None:
        self._begin()

    def tend(self, now: float) -> None:
        """Look after it: notice its end, start it again when the time has come."""
        if self.again_at is not None:
            if now >= self.again_at:
                self._begin()
        elif (code := self.process.poll()) is not None:
            if now - self.began > _LASTED:
                self.delay = 0.0
            log.warning("child.ended", child=self.name, code=code, again_in=self.delay)
            self.again_at = now + self.delay
            self.delay = min(max(_FIRST_DELAY, self.delay * 2), self.longest_delay)

    def signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.again_at is None and self.process.poll() is None:
            self.process.send_signal(number)

    def _begin(self) -> None:
        self.again_at = None
        self.began = time.monotonic()
        self.process = self.start()


class Supervisor:
    """Runs a configuration.

    Args:
        config: what to serve.
        log_level: for the workers.

    Raises:
        ConfigError: an address cannot be listened on, or a backend does not exist.
    """

    def __init__(self, config: Config, log_level: str = "info") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="interlingua-")
        self._sockets = _listen(config)
        self._config, self._engines = self._with_engines(config)
        self._log_level = log_level
        self._stopping = False
        self._children: list[Child] = []

    def run(self, tend: Callable[[], bool] = lambda: True) -> int:
        """Serve until SIGTERM or SIGINT, or until `tend`, called often, says no. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        engines = [Child(f"engine {n}", _engine(command), 2.0) for n, command in self._engines.items()]
        workers = [
            Child(f"worker {n}", partial(self._worker, f"worker-{n}"), 1.0) for n in range(self._config.server.workers)
        ]
        self._children = [*engines, *workers]
        failed = False
        while not self._stopping and not failed:
            for child in self._children:
                child.tend(time.monotonic())
            failed = not tend()
            time.sleep(_POLL)
        drained = self._config.server.drain_delay + self._config.server.drain_timeout
        self._end(workers, 1.0 if failed else drained + _PATIENCE)
        self._end(engines, _PATIENCE)
        self._folder.cleanup()
        return 1 if failed else 0

    def _stop(self, *_: Any) -> None:
        self._stopping = True

    @staticmethod
    def _end(children: list[Child], limit: float) -> None:
        """Ask the children to end, and make them after `limit` seconds."""
        for child in children:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + limit
        for child in children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("child.killed", child=child.name)
                child.process.kill()
                child.process.wait()

    def _with_engines(self, config: Config) -> tuple[Config, dict[str, list[str]]]:
        """The configuration as workers see it, with the sockets of engines, and the engines' commands."""
        commands: dict[str, list[str]] = {}
        backends: dict[str, dict[str, Any]] = {}
        for name, section in config.backends.items():
            options = {key: value for key, value in section.items() if key != "kind"}
            make = getattr(backend_class(name, section["kind"]), "engine_command", None)
            path = Path(self._folder.name) / f"{name}.sock"
            try:
                command = make(options, path) if make is not None else None
            except msgspec.ValidationError as error:
                raise ConfigError(f"backends.{name}: {error}") from None
            backends[name] = section if command is None else section | {"socket": str(path)}
            if command is not None:
                commands[name] = command
        return msgspec.structs.replace(config, backends=backends), commands

    def _worker(self, slot: str) -> subprocess.Popen[bytes]:
        descriptors = tuple(listener.fileno() for listener in self._sockets)
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.worker"],
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
            start_new_session=True,
        )
        assert process.stdin is not None
        folder = Path(self._folder.name) / "experiments"
        orders = Orders(self._config, descriptors, self._log_level, str(folder), slot)
        process.stdin.write(msgspec.json.encode(orders) + b"\n")
        process.stdin.flush()
        return process


def _engine(command: list[str]) -> Callable[[], subprocess.Popen[bytes]]:
    # A session of its own: Ctrl-C at a terminal is the supervisor's to handle, after the workers have drained.
    return lambda: subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_parent)  # noqa: S603, PLW1509


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)


def _listen(config: Config) -> list[socket.socket]:
    server = config.server
    ports = [server.port, *(listener.port for listener in server.listeners)]
    sockets: list[socket.socket] = []
    for port in ports:
        family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((server.host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {server.host}:{port}: {error.strerror}") from None
        listener.listen(2048)
        listener.set_inheritable(True)
        sockets.append(listener)
    return sockets
