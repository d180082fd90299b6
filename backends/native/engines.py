"""The engines of a backend: those that it starts, those that a supervisor starts for it, and those of somebody else."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from backends.native.client.engine_client import EngineClient
from backends.native.client.engine_process import EngineProcess, engine_command
from backends.native.client.engines_file import EnginesFile
from backends.native.client.transports import Connect, in_process, over_socket, over_tcp
from backends.native.options import NativeOptions, read_options
from backends.native.protocol.addresses import TcpAddress, read_address, unix_address
from backends.native.protocol.greeting import read_secret
from backends.standby import EngineCommand


class Engines:
    """What leads to each engine, and the processes that this backend runs itself.

    `connects` open transports to the engines, by name: a number, or `HOST:PORT` of one elsewhere.

    Args:
        options: the backend's.
        on_exit: called with the name and the exit code of an own engine each time it has ended by itself.
        connect: replaces all that, for tests: the transport of the engine, or of several by name.
    """

    def __init__(
        self,
        options: NativeOptions,
        on_exit: Callable[[str, int], None],
        connect: Connect | Mapping[str, Connect] | None = None,
    ) -> None:
        self._processes: list[EngineProcess] = []
        self._folder: Path | None = None
        self.connects: dict[str, Connect] = {}
        self._file: EnginesFile | None = None  # engines that come and go
        if connect is not None:
            self.connects |= connect if isinstance(connect, Mapping) else {"0": connect}
            return
        if options.engine == "inprocess":
            self.connects["0"] = in_process(options.own_engines[0])
            return
        if options.own_engines or options.ray:
            # A short path: the address of a Unix socket has 108 bytes at most on Linux (unix(7)).
            self._folder = folder = Path(tempfile.gettempdir(), f"engine-{secrets.token_hex(8)}")
        for own in options.own_engines:
            socket, name = folder / f"socket-{own.replica_number}", str(own.replica_number)
            command = engine_command(own, socket, warm=options.warm_engine)
            self._processes.append(EngineProcess(command, partial(on_exit, name), warm=bool(options.warm_engine)))
            self.connects[name] = over_socket(str(socket))
        to = partial(_connect_to, secret_env=options.secret_variable)
        for text in options.elsewhere:
            address = read_address(text)
            name = f"{address.host}:{address.port}" if isinstance(address, TcpAddress) else str(len(self.connects))
            self.connects[name] = to(address)
        path = Path(options.engines_file) if options.engines_file is not None else None
        if options.ray is not None and self._folder is not None:
            path = self._folder / "engines"
            self._processes.append(EngineProcess(cluster_command(options, options.ray, path), lambda _: None))
        self._file = EnginesFile(path, to, self.connects) if path is not None else None

    async def start(self, client: EngineClient) -> None:
        """Start the engines of this backend; they listen a moment later. The client uses others, which come and go.

        Raises:
            OSError: one cannot be started.
        """
        if self._folder is not None:
            # Only this user can enter the folder, so nobody else can connect, or put another socket there. `mkdir`
            # fails if the folder exists, also if somebody else made it.
            self._folder.mkdir(mode=0o700)
        for process in self._processes:
            await process.start()
        if self._file is not None:
            await self._file.start(client)

    async def aclose(self) -> None:
        """Stop the engines of this backend. Idempotent."""
        if self._file is not None:
            await self._file.aclose()
        await asyncio.gather(*(process.aclose() for process in self._processes))
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def engine_commands(options: Mapping[str, Any], path: Path) -> tuple[EngineCommand, ...]:
    """The commands for a supervisor (`backends.standby.StartsEngines`).

    Raises:
        msgspec.ValidationError: the options are wrong.
    """
    given = read_options(options)
    if given.engine != "process":
        return ()
    if given.ray is not None:
        # It starts no engine: it asks the cluster for them, and lists them in the file.
        file = path.with_name(f"{path.name}-engines")
        return (EngineCommand(tuple(cluster_command(given, given.ray, file)), str(file)),)
    commands = []
    for own in given.own_engines:
        socket = path.with_name(f"{path.name}-{own.replica_number}.sock")
        command = engine_command(own, socket, warm=given.warm_engine)
        commands.append(EngineCommand(tuple(command), unix_address(socket), warm=bool(given.warm_engine)))
    return tuple(commands)


def on_ray(section: Mapping[str, Any], address: str) -> dict[str, Any]:
    """A backend's section with its engines on a Ray cluster, unless it has none of its own, or says where they are."""
    has_others = any(key in section for key in ("engines", "engines_file", "socket")) and "replicas" not in section
    if has_others or section.get("engine") == "inprocess" or section.get("replicas") == 0 or "ray" in section:
        return {**section}
    return {**section, "ray": address}


def shared_options(options: Mapping[str, Any], commands: tuple[EngineCommand, ...]) -> dict[str, Any]:
    """The options for a worker that is to use the engines of a supervisor's commands."""
    if options.get("ray") is not None:
        here = ("ray", "resources", "warm_engine")
        kept = {key: value for key, value in options.items() if key not in here}
        return {
            **kept,
            "replicas": 0,
            "secret_env": read_options(options).secret_variable,
            "engines_file": commands[0].address,
        }
    return {**options, "replicas": 0, "engines": [*(each.address for each in commands), *options.get("engines", ())]}


def cluster_command(options: NativeOptions, ray: str, file: Path) -> list[str]:
    """The command of the process that has a cluster run the engines, and lists them in a file."""
    spec = options.placed(Path(options.model).name)
    given = [f"--ray={ray}", f"--file={file}", f"--spec={msgspec.json.encode(spec).decode()}"]
    return [sys.executable, "-m", "backends.native.cluster", *given]


def _connect_to(address: TcpAddress | Path, secret_env: str | None) -> Connect:
    if isinstance(address, TcpAddress):
        return over_tcp(address, partial(read_secret, secret_env))
    return over_socket(str(address))
