"""Starts what serves and keeps it alive: the listening sockets, one engine per native backend, N workers.

Single-threaded and synchronous: it has nothing to do with requests. Children die with it, however it dies: workers
watch their standard input, which it holds open, and the kernel sends engines a signal.

On SIGHUP the configuration is read again. Its workers start beside the old ones, share their sockets, and listen once
every endpoint can answer; then the old ones end their streams and go. An engine whose options are the same goes on.
"""

from __future__ import annotations

import hashlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gateway.app import backend_class
from gateway.config import Config, ConfigError
from gateway.process.child import Child, dying_with_us, end
from gateway.process.worker import Orders

log = structlog.get_logger()

_PATIENCE = 5.0  # seconds that an engine gets to end after the workers have
_POLL = 0.05

Command = tuple[str, ...]


@dataclass(slots=True, eq=False)
class Running:
    """The processes that serve a configuration."""

    config: Config
    engines: dict[Command, Child]
    workers: list[Child]


class Supervisor:
    """Runs a configuration.

    Args:
        read: reads it, now and again when told so.
        log_level: for the workers.

    Raises:
        ConfigError: it is wrong, an address cannot be listened on, or a backend does not exist.
    """

    def __init__(self, read: Callable[[], Config], log_level: str = "info") -> None:
        self._read = read
        self._folder = tempfile.TemporaryDirectory(prefix="interlingua-")
        self.config = read()
        self._sockets = _listen(self.config)
        self._with_engines(self.config)
        self._log_level = log_level
        self._stopping = False
        self._told_to_read = False
        self._now: Running | None = None
        self._next: Running | None = None
        self._leaving: list[Running] = []
        self._generations = count()

    @property
    def port(self) -> int:
        """Where it listens: the configuration's port, or the free one that was found for 0."""
        return int(self._sockets[0].getsockname()[1])

    def run(self, tend: Callable[[], bool] = lambda: True) -> int:
        """Serve until SIGTERM or SIGINT, or until `tend`, called often, says no. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        # At a terminal it means that the terminal is gone.
        signal.signal(signal.SIGHUP, self._stop if sys.stdin.isatty() else self._read_again)
        self._now = now = self._start(self.config)
        failed = False
        while not self._stopping and not failed:
            if self._told_to_read:
                self._told_to_read = False
                self._prepare(now)
            now = self._take_over(now)
            self._see_off()
            for child in (*now.engines.values(), *now.workers):
                child.tend(time.monotonic())
            failed = not tend()
            time.sleep(_POLL)
        if self._next is not None:
            self._drop(self._next, now)
        drained = now.config.server.drain_delay + now.config.server.drain_timeout
        running = [now, *self._leaving]
        end([worker for each in running for worker in each.workers], 1.0 if failed else drained + _PATIENCE)
        end([engine for each in running for engine in each.engines.values()], _PATIENCE)
        self._folder.cleanup()
        return 1 if failed else 0

    def _stop(self, *_: Any) -> None:
        self._stopping = True

    def _read_again(self, *_: Any) -> None:
        self._told_to_read = True

    def _prepare(self, now: Running) -> None:
        """Read the configuration and start what serves it; what is wrong with it harms nothing. One that still waits
        for its backends is given up for it.
        """
        try:
            config = self._read()
            if _addresses(config) != _addresses(self.config):
                raise ConfigError("an address to listen on can only be changed by a restart")
            if self._next is not None:
                self._drop(self._next, now)
            self._next = self._start(config)
        except ConfigError as error:
            log.error("config.refused", why=str(error))

    def _take_over(self, now: Running) -> Running:
        """What is to serve: what is prepared, once it can; or else what did."""
        if (next := self._next) is None:
            return now
        if any(child.ended for child in (*_without(next.engines, now.engines).values(), *next.workers)):
            log.error("config.refused", why="an endpoint of it cannot answer")
            self._drop(next, now)
            self._next = None
            return now
        if not all(self._serving(worker.process.pid).exists() for worker in next.workers):
            return now
        log.info("config.changed")
        self._now, self._next = next, None
        for worker in now.workers:
            worker.signal(signal.SIGINT)
        self._leaving.append(Running(now.config, _without(now.engines, next.engines), now.workers))
        return next

    def _see_off(self) -> None:
        """End the engines that nobody is left to ask."""
        for gone in [each for each in self._leaving if all(worker.ended for worker in each.workers)]:
            end(list(gone.engines.values()), _PATIENCE)
            self._leaving.remove(gone)

    def _drop(self, next: Running, now: Running) -> None:
        end(next.workers, 1.0)
        end(list(_without(next.engines, now.engines).values()), _PATIENCE)

    def _start(self, config: Config) -> Running:
        config, commands = self._with_engines(config)
        kept = self._now.engines if self._now is not None else {}
        engines = {
            command: kept.get(command) or Child(f"engine {name}", dying_with_us(command), 2.0)
            for name, command in commands.items()
        }
        generation = next(self._generations)
        workers = [
            Child(f"worker {n}", partial(self._worker, config, f"worker-{generation}-{n}"), 1.0)
            for n in range(config.server.workers)
        ]
        return Running(config, engines, workers)

    def _with_engines(self, config: Config) -> tuple[Config, dict[str, Command]]:
        """The configuration as workers see it, with the sockets of engines, and the engines' commands."""
        commands: dict[str, Command] = {}
        backends: dict[str, dict[str, Any]] = {}
        for name, section in config.backends.items():
            options = {key: value for key, value in section.items() if key != "kind"}
            make = getattr(backend_class(name, section["kind"]), "engine_command", None)
            digest = hashlib.sha256(msgspec.json.encode(options, order="sorted")).hexdigest()[:8]
            path = Path(self._folder.name) / f"{name}-{digest}.sock"
            try:
                command = make(options, path) if make is not None else None
            except msgspec.ValidationError as error:
                raise ConfigError(f"backends.{name}: {error}") from None
            backends[name] = section if command is None else section | {"socket": str(path)}
            if command is not None:
                commands[name] = tuple(command)
        return msgspec.structs.replace(config, backends=backends), commands

    def _worker(self, config: Config, slot: str) -> subprocess.Popen[bytes]:
        descriptors = tuple(listener.fileno() for listener in self._sockets)
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.process.worker"],
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
            start_new_session=True,
        )
        assert process.stdin is not None
        first = self._now is None or self._now.config is config
        orders = Orders(
            config,
            descriptors,
            self._log_level,
            folder=str(Path(self._folder.name) / "experiments"),
            slot=slot,
            serving=None if first else str(self._serving(process.pid)),
        )
        process.stdin.write(msgspec.json.encode(orders) + b"\n")
        process.stdin.flush()
        return process

    def _serving(self, pid: int) -> Path:
        """The file that a worker makes when it listens."""
        return Path(self._folder.name) / f"serving-{pid}"


def _without(engines: Mapping[Command, Child], others: Collection[Command]) -> dict[Command, Child]:
    return {command: engine for command, engine in engines.items() if command not in others}


def _addresses(config: Config) -> tuple[str, list[int]]:
    server = config.server
    return server.host, [server.port, *(listener.port for listener in server.listeners)]


def _listen(config: Config) -> list[socket.socket]:
    host, ports = _addresses(config)
    sockets: list[socket.socket] = []
    for port in ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        listener.listen(2048)
        listener.set_inheritable(True)
        sockets.append(listener)
    return sockets
