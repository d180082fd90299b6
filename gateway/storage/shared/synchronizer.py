"""Keeps what gateways share the same on all of them, in the background.

Strategy: of the workers of a gateway one does it for all, since they share the files that it writes: the one that holds
a lock. It looks at every part once a second, and at once when another gateway announces a change. An announcement that
is lost costs a second. While the state server is away, nothing happens here.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from gateway.config import ConfigError
from gateway.storage.shared.state_server import ServerAway, StateServer

log = structlog.get_logger()

_INTERVAL = 1.0
"""Seconds between two looks."""
_CHECKS = 4
"""In between, whether a look is due at once."""


class Part(Protocol):
    """Something that gateways share.

    Attributes:
        channels: what is to be called with each message of these channels.
    """

    channels: Mapping[str, Callable[[bytes], Awaitable[None]]]

    def is_due(self) -> bool:
        """Whether `look` should not wait until its time. Costs little."""
        ...

    async def look(self) -> None:
        """Give the state server what is new here, and take over what is new there.

        Raises:
            ConfigError: something cannot be read.
            OSError: the state server does not answer, or a file cannot be written.
        """
        ...


class Synchronizer:
    """One worker's part in it.

    Args:
        server: the state server.
        folder: shared by the workers of this gateway; None: there is one.
        parts: what is shared.
    """

    def __init__(self, server: StateServer, folder: Path | None, parts: Sequence[Part]) -> None:
        self._server = server
        self._lock = folder / "synchronizer.lock" if folder is not None else None
        self._parts = parts
        self._channels = {name: call for part in parts for name, call in part.channels.items()}
        self._said: dict[int, str] = {}
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        """Synchronize until cancelled."""
        lock = await self._acquire()
        listening = asyncio.create_task(self._listen())
        try:
            while True:
                await self._look()
                for _ in range(_CHECKS):
                    await asyncio.sleep(_INTERVAL / _CHECKS)
                    if not self._server.is_away and any(part.is_due() for part in self._parts):
                        break
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
            if lock is not None:
                os.close(lock)

    async def _acquire(self) -> int | None:
        """Return the lock once no other worker has it."""
        if self._lock is None:
            return None
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return file
                await asyncio.sleep(_INTERVAL)
        except BaseException:
            os.close(file)
            raise

    async def _look(self) -> None:
        async with self._looking:
            for number, part in enumerate(self._parts):
                if self._server.is_away:  # which is logged elsewhere, once
                    return
                await self._guarded(number, part.look())

    async def _guarded(self, number: int, work: Awaitable[None]) -> None:
        """Do something; what goes wrong is logged, but not again and again."""
        said = ""
        try:
            await work
        except ServerAway:
            return
        # The last: what a gateway of another release has sent.
        except (ConfigError, OSError, msgspec.MsgspecError) as error:
            said = str(error)
            if said != self._said.get(number):
                log.error("state.not_shared", error=said)
        self._said[number] = said

    async def _listen(self) -> None:
        while True:
            with suppress(ServerAway):
                async with self._server.listen(tuple(self._channels)) as pubsub:
                    # What was announced before is not announced again.
                    await self._look()
                    async for message in pubsub.listen():
                        call = self._channels[message["channel"].decode()]
                        await self._guarded(-1, call(message["data"]))
            await asyncio.sleep(_INTERVAL)
