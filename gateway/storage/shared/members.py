"""The gateways that share a state server: which of them live, and what each has taken over.

A gateway is all workers of one supervisor. It is known by a name of its own, which lasts as long as its figures do.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import socket
from pathlib import Path

from gateway.storage.shared.state_server import Script, ServerAway, StateServer

LIVE_SECONDS = 5.0
"""A gateway that was not heard of for longer does not count as living."""
_FORGOTTEN_SECONDS = 86400.0

# By the clock of the server, which is the same for all.
_BEAT = Script("""
local now = redis.call('TIME')
local seconds = tonumber(now[1]) + tonumber(now[2]) / 1e6
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.3f %d', seconds, ARGV[2]))
""")
_LIVING = Script("""
local now = redis.call('TIME')
local oldest = tonumber(now[1]) - tonumber(ARGV[1])
local found, all = {}, redis.call('HGETALL', KEYS[1])
for place = 1, #all, 2 do
  local seen, revision = string.match(all[place + 1], '(%S+) (%S+)')
  if tonumber(seen) < tonumber(now[1]) - tonumber(ARGV[2]) then
    redis.call('HDEL', KEYS[1], all[place])
  elseif tonumber(seen) >= oldest then
    table.insert(found, all[place])
    table.insert(found, revision)
  end
end
return found
""")


class Members:
    """The gateways.

    Attributes:
        own: this gateway's name.

    Args:
        server: the state server.
        own: this gateway's name.
    """

    def __init__(self, server: StateServer, own: str) -> None:
        self._server = server
        self._key = server.key("gateways")
        self.own = own

    async def beat(self, revision: int) -> None:
        """Tell that this gateway lives, and serves this revision of the endpoints.

        Raises:
            ServerAway: the state server does not answer.
        """
        await self._server.evaluate(_BEAT, (self._key,), (self.own, revision))

    async def living(self) -> dict[str, int]:
        """The names of the living gateways, each with the revision that it serves.

        Raises:
            ServerAway: the state server does not answer.
        """
        found = await self._server.evaluate(_LIVING, (self._key,), (LIVE_SECONDS, _FORGOTTEN_SECONDS))
        texts = [each.decode() for each in found]
        return {name: int(revision) for name, revision in zip(texts[::2], texts[1::2], strict=True)}

    async def lacking(self, revision: int, seconds: float) -> list[str]:
        """Wait until all other gateways serve a revision, but not longer; return the names of those that do not."""
        late: list[str] = []
        try:
            async with asyncio.timeout(seconds):
                while True:
                    living = await self.living()
                    late = sorted(name for name, served in living.items() if served < revision and name != self.own)
                    if not late:
                        return []
                    await asyncio.sleep(0.01)
        except (TimeoutError, ServerAway):
            return late


def gateway_name(folder: Path | None) -> str:
    """The name of the gateway whose workers share a folder; it is made if need be. None: a new one."""
    # It is a part of files' names.
    new = f"{re.sub(r'[^A-Za-z0-9]', '-', socket.gethostname())[:40]}-{secrets.token_hex(4)}"
    if folder is None:
        return new
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / "gateway", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # of workers that start at once, one makes the name
        if known := os.read(file, 512).decode():
            return known
        os.write(file, new.encode())
        return new
    finally:
        os.close(file)
