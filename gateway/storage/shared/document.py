"""A document that is read often and changed rarely: in a file, which workers share, or by a state server, too.

Strategy: what is served is always read from the file. A state server only says what the file should hold: each change
is a compare-and-set of the document's revision there, and the gateways that hear of it replace their files. So a read
costs the same with a state server and without one, and a server that is away leaves the last document in force.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from gateway.config import ConfigError, Section
from gateway.storage.json_file import JsonFile
from gateway.storage.shared.state_server import Script, ServerAway, StateServer

log = structlog.get_logger()

_CHANGE_TIMEOUT = 10.0
"""Seconds in which a change must win against other writers."""
_LONGEST_PAUSE = 0.05

_COMPARE_AND_SET = Script("""
if tonumber(redis.call('HGET', KEYS[1], 'revision') or '0') ~= tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'revision', ARGV[2], 'data', ARGV[3])
redis.call('PUBLISH', KEYS[1], ARGV[2])
return 1
""")


class Revised(Section, frozen=True, omit_defaults=True):
    """What gateways can share: `revision` counts its changes on the state server, 0 before the first one."""

    revision: int = 0


_Document = TypeVar("_Document", bound=Revised)


class Document(Protocol[_Document]):
    """Where a document is."""

    def stamp(self) -> int:
        """A number that differs after each change. Costs a system call."""
        ...

    def read(self) -> _Document:
        """The document.

        Raises:
            ConfigError: it cannot be read.
        """
        ...

    async def change(self, make: Callable[[_Document], _Document]) -> None:
        """Replace the document with what `make` returns for it; `make` may be called several times.

        Raises:
            ConfigError: it cannot be read.
            OSError: it cannot be changed now.
        """
        ...


class FileDocument(Generic[_Document]):
    """A document of one gateway."""

    def __init__(self, file: JsonFile[_Document]) -> None:
        self.file = file
        self.stamp = file.stamp
        self.read = file.read

    async def change(self, make: Callable[[_Document], _Document]) -> None:
        """See `Document`; here `make` is called once, under the file's lock."""
        await asyncio.to_thread(self.file.change, make)  # locking and `fsync` block


class SharedDocument(FileDocument[_Document]):
    """A document of all gateways with the same state server.

    Attributes:
        channel: on which a change is announced.
        revision: of the file, as far as this process has seen.

    Args:
        file: its copy on this machine.
        server: the state server.
        name: of the document there.
        empty: what it holds before the first change.
    """

    def __init__(self, file: JsonFile[_Document], server: StateServer, name: str, empty: _Document) -> None:
        super().__init__(file)
        self._server = server
        self._empty = empty
        self.channel = server.key(name)
        self.revision = 0

    async def change(self, make: Callable[[_Document], _Document]) -> None:
        """See `Document`; `make` is called until no other writer comes in between.

        Raises:
            ConfigError: the document cannot be read.
            ServerAway: the state server does not answer. It may have made the change.
        """
        try:
            async with asyncio.timeout(_CHANGE_TIMEOUT):
                changed = await self._change(make)
        except TimeoutError:
            raise ServerAway("other gateways change the same all the time") from None
        await self._adopt(changed)

    async def look(self) -> None:
        """Take over what the state server holds. If it has lost the document, give it this gateway's.

        Raises:
            ConfigError: one of the two cannot be read.
            OSError: the state server does not answer, or the file cannot be written.
        """
        there, own = await self.fetch(), await asyncio.to_thread(self.read)
        if there.revision >= max(own.revision, 1):
            await self._adopt(there)
        elif own != self._empty:
            given = replace(own, revision=max(own.revision, 1))
            if await self.compare_and_set(there.revision, given):
                log.info("document.given", name=self.channel, revision=given.revision)
                await self._adopt(given)

    async def fetch(self) -> _Document:
        """What the state server holds.

        Raises:
            ConfigError: it cannot be read.
            ServerAway: the state server does not answer.
        """
        data = await self._server.run(lambda redis: redis.hget(self.channel, "data"))
        if data is None:
            return self._empty
        try:
            return msgspec.json.decode(data, type=type(self._empty))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.channel} on the state server cannot be read: {error}") from None

    async def compare_and_set(self, before: int, new: _Document) -> bool:
        """Put a document in the place of that with the revision `before`; return whether it was still that one.

        Raises:
            ServerAway: the state server does not answer.
        """
        values = (before, new.revision, msgspec.json.encode(new))
        return bool(await self._server.evaluate(_COMPARE_AND_SET, (self.channel,), values))

    async def _change(self, make: Callable[[_Document], _Document]) -> _Document:
        pause = 0.0
        while True:
            there, own = await self.fetch(), await asyncio.to_thread(self.read)
            # A server that was started anew, without its data, is given them with this change.
            known = own if own.revision > there.revision else there
            new = make(known)
            if new == known:
                return known
            new = replace(new, revision=known.revision + 1)
            if await self.compare_and_set(there.revision, new):
                return new
            pause = min(2 * pause + 0.002, _LONGEST_PAUSE)
            await asyncio.sleep(pause * random.random())

    async def _adopt(self, found: _Document) -> None:
        """Write a document to the file, unless that has a later one."""

        def newer(old: _Document) -> _Document:
            return found if found.revision >= old.revision else old

        if await asyncio.to_thread(self.read) != found:
            await asyncio.to_thread(self.file.change, newer)
        self.revision = max(self.revision, found.revision)
