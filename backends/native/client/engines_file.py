"""The engines that a file lists: they come and go while a model is served.

Each line has an address, `tcp://HOST:PORT` or `unix:///PATH`, and may have a second word, the engine's incarnation: the
same address with another one is another engine. Empty lines, and what follows a `#`, say nothing. Whoever writes
the file replaces it as a whole (rename). Beside the file it may make a folder (`waiting_folder`): there each client
says how many sequences wait for an engine while there is none.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from backends.native.client.engine_client import EngineClient
from backends.native.client.transports import Connect
from backends.native.protocol.addresses import TcpAddress, read_address

log = structlog.get_logger()

_INTERVAL = 0.5
"""Seconds between looks at the file. An engine that has died is noticed by its connection, not by the file."""
_STALE = 10 * _INTERVAL
"""Seconds after which a client that says nothing more does not count: it was killed."""


def waiting_folder(path: Path) -> Path:
    """Where the clients of an engines file say how much waits."""
    return path.with_name(f"{path.name}-waiting")


def count_waiting(path: Path) -> int:
    """The sequences that wait for an engine at all clients of an engines file."""
    waiting = 0
    for file in waiting_folder(path).glob("[!.]*"):
        with suppress(FileNotFoundError):  # nothing waits there any more
            if time.time() - file.stat().st_mtime < _STALE:
                waiting += int(file.read_text())
            else:
                file.unlink()
    return waiting


class EnginesFile:
    """Has a client use the engines of a file, beside those that it always has.

    Args:
        path: the file; it need not exist yet.
        connect: opens a transport to an address.
        always: engines that are not in the file, by name.
    """

    def __init__(
        self, path: Path, connect: Callable[[TcpAddress | Path], Connect], always: Mapping[str, Connect]
    ) -> None:
        self._path = path
        self._connect = connect
        self._listed: dict[str, Connect] = {}
        self._always = dict(always)
        self._text: str | None = None
        self._waiting = waiting_folder(path) / secrets.token_hex(8)
        self._task: asyncio.Task[None] | None = None

    async def start(self, client: EngineClient) -> None:
        """Have the client use the engines that are listed now, and those that are listed later."""
        await self.look(client)
        self._task = asyncio.create_task(self._follow(client), name="engines-file")

    async def aclose(self) -> None:
        """Look no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
            self._waiting.unlink(missing_ok=True)

    async def look(self, client: EngineClient) -> None:
        """Read the file, and pass on what it lists; one that cannot be read changes nothing."""
        with suppress(OSError, UnicodeDecodeError):
            if (text := self._path.read_text()) != self._text:
                self._text = text
                self._listed = self._read(text)
        # Also if nothing has changed: engines that leave are disconnected once they have nothing left to do.
        await client.use({**self._always, **self._listed})
        self._report(client.waiting)

    async def _follow(self, client: EngineClient) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            await self.look(client)

    def _report(self, waiting: int) -> None:
        with suppress(OSError):  # nobody wants to know: there is no folder
            if waiting:
                new = self._waiting.with_name(f".{self._waiting.name}")
                new.write_text(str(waiting))
                new.replace(self._waiting)
            else:
                self._waiting.unlink(missing_ok=True)

    def _read(self, text: str) -> dict[str, Connect]:
        found: dict[str, Connect] = {}
        for line in text.splitlines():
            if not (words := line.partition("#")[0].split()):
                continue
            try:
                address = read_address(words[0])
            except ValueError as error:
                log.error("engine.unreadable", file=str(self._path), error=str(error))
                continue
            name = f"{address.host}:{address.port}" if isinstance(address, TcpAddress) else str(address)
            found["/".join([name, *words[1:2]])] = self._connect(address)
        return found
