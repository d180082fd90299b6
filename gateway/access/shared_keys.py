"""One list of API keys for all gateways with the same state server.

Strategy: each gateway has its keys file, which `gateway keys`, the admin API and the workers use as without a state
server. What was changed in it since it was last seen, is changed on the state server, too, and what was changed there
is changed in the file. A revoked key is remembered by its digest, so that no gateway that was away brings it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from gateway.access.keys_file import Key, KeyList, keys_file
from gateway.storage.json_file import JsonFile
from gateway.storage.shared.document import Revised, SharedDocument
from gateway.storage.shared.state_server import StateServer

log = structlog.get_logger()

_MOST_REVOKED = 10_000


class _Keys(Revised, frozen=True):
    """The keys of all gateways.

    Attributes:
        keys: by name.
        revoked: digests of keys that are none any more, the last one revoked at the end.
    """

    keys: dict[str, Key] = msgspec.field(default_factory=dict)
    revoked: tuple[str, ...] = ()


class SharedKeys:
    """The part of the synchronizer.

    Args:
        server: the state server.
        path: of the keys file. Beside it, with `.shared`, is the list of which it was made last.
    """

    def __init__(self, server: StateServer, path: Path) -> None:
        self._file = keys_file(path)
        self._base = JsonFile(path.with_name(f"{path.name}.shared"), _Keys(), mode=0o600)
        self._shared = SharedDocument(self._base, server, "keys", _Keys())
        self._stamp = -1
        self.channels: Mapping[str, Callable[[bytes], Awaitable[None]]] = {self._shared.channel: self._changed}

    def is_due(self) -> bool:
        """Whether the file has been changed."""
        return self._file.stamp() != self._stamp

    async def look(self) -> None:
        """Take over what other gateways have changed, and give them what was changed here."""
        while not await self._exchange():
            pass

    async def _changed(self, _: bytes) -> None:
        await self.look()

    async def _exchange(self) -> bool:
        """Return False if somebody has changed the shared list meanwhile."""
        there = await self._shared.fetch()
        own, base = await asyncio.to_thread(lambda: (self._file.read(), self._base.read()))
        # A server that was started anew, without its data, is given them again.
        known = base if base.revision > there.revision else there
        new = _merged(known, base.keys, {key.name: key for key in own.keys})
        if new != known or known is not there:
            new = replace(new, revision=known.revision + 1)
            if not await self._shared.compare_and_set(there.revision, new):
                return False
        # The file first: of a file that is newer than its base, no key seems to be revoked.
        if not await asyncio.to_thread(self._write, own, new):
            return True  # somebody has changed the file; the next look gives that
        if new != base:
            await asyncio.to_thread(self._base.change, lambda _: new)
        self._stamp = self._file.stamp()
        return True

    def _write(self, own: KeyList, shared: _Keys) -> bool:
        """Make the file hold the shared list, unless it holds something else than `own`."""
        unchanged = True

        def take(found: KeyList) -> KeyList:
            nonlocal unchanged
            unchanged = found == own
            return _as_list(own, shared.keys) if unchanged else found

        if _as_list(own, shared.keys) != own:
            self._file.change(take)
        return unchanged


def _as_list(own: KeyList, shared: Mapping[str, Key]) -> KeyList:
    """The shared keys in the order of a file, so that whoever reads it sees what has changed; new ones at its end."""
    kept = [shared[key.name] for key in own.keys if key.name in shared]
    names = {key.name for key in kept}
    return KeyList(keys=(*kept, *(key for name, key in shared.items() if name not in names)))


def _merged(shared: _Keys, base: Mapping[str, Key], own: Mapping[str, Key]) -> _Keys:
    """The shared list after what one gateway has changed since its file was made of `base`."""
    removed = {key.digest for name, key in base.items() if name not in own or own[name].digest != key.digest}
    revoked = dict.fromkeys((*shared.revoked, *sorted(removed - {*shared.revoked})))
    keys = {name: key for name, key in shared.keys.items() if key.digest not in revoked}
    for name, key in own.items():
        if base.get(name) == key or key.digest in revoked:
            continue
        if name in keys and keys[name].digest != key.digest:
            log.error("keys.rejected", error=f"another gateway has a key '{name}' already", key_name=name)
            continue
        keys[name] = key
    return replace(shared, keys=keys, revoked=tuple(revoked)[-_MOST_REVOKED:])
