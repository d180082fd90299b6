"""The engines of a backend: those that it starts, those that a supervisor starts for it, and those of somebody else."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from backends.base import EngineCommand
from backends.native.client.engine_process import EngineProcess, engine_command
from backends.native.client.transports import Connect, in_process, over_socket, over_tcp
from backends.native.options import NativeOptions, read_options
from backends.native.protocol.addresses import TcpAddress, read_address, unix_address
from backends.native.protocol.greeting import read_secret


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
        if connect is not None:
            self.connects |= connect if isinstance(connect, Mapping) else {"0": connect}
            return
        if options.engine == "inprocess":
            self.connects["0"] = in_process(options.own_engines[0])
            return
        if options.own_engines:
            # A short path: the address of a Unix socket has 108 bytes at most on Linux (unix(7)).
            self._folder = folder = Path(tempfile.gettempdir(), f"engine-{secrets.token_hex(8)}")
        for own in options.own_engines:
            socket, name = folder / f"socket-{own.replica_number}", str(own.replica_number)
            command = engine_command(own, socket, warm=options.warm_engine)
            self._processes.append(EngineProcess(command, partial(on_exit, name), warm=bool(options.warm_engine)))
            self.connects[name] = over_socket(str(socket))
        for text in options.elsewhere:
            address = read_address(text)
            if isinstance(address, TcpAddress):
                self.connects[f"{address.host}:{address.port}"] = over_tcp(
                    address, partial(read_secret, options.secret_env)
                )
            else:
                self.connects[str(len(self.connects))] = over_socket(str(address))

    async def start(self) -> None:
        """Start the engines of this backend; they listen a moment later.

        Raises:
            OSError: one cannot be started.
        """
        if self._folder is not None:
            # Only this user can enter the folder, so nobody else can connect, or put another socket there. `mkdir`
            # fails if the folder exists, also if somebody else made it.
            self._folder.mkdir(mode=0o700)
        for process in self._processes:
            await process.start()

    async def aclose(self) -> None:
        """Stop the engines of this backend. Idempotent."""
        await asyncio.gather(*(process.aclose() for process in self._processes))
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def engine_commands(options: Mapping[str, Any], path: Path) -> tuple[EngineCommand, ...]:
    """The commands for a supervisor (`backends.base.StartsEngines`).

    Raises:
        msgspec.ValidationError: the options are wrong.
    """
    given = read_options(options)
    if given.engine != "process":
        return ()
    commands = []
    for own in given.own_engines:
        socket = path.with_name(f"{path.name}-{own.replica_number}.sock")
        command = engine_command(own, socket, warm=given.warm_engine)
        commands.append(EngineCommand(tuple(command), unix_address(socket), warm=bool(given.warm_engine)))
    return tuple(commands)


def shared_options(options: Mapping[str, Any], commands: tuple[EngineCommand, ...]) -> dict[str, Any]:
    """The options for a worker that is to use the engines of a supervisor's commands."""
    return {**options, "replicas": 0, "engines": [*(each.address for each in commands), *options.get("engines", ())]}
