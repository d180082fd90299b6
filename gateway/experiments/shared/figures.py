"""Figures of all gateways with the same state server, in the folder of each.

Strategy: a gateway's counters have one writer on the state server, as each file has one: the gateway itself, which puts
the sum of its workers there when it has changed. It lays those of the others beside its own files, where every reader
adds them up (`gateway.experiments.counters_file`). So a request costs nothing here, nothing is counted twice, what a
gateway that has ended has counted stays, and a state server that is away makes the others' figures late, not wrong.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import structlog

from gateway.experiments.old_figures import KEPT_DAYS
from gateway.storage.shared.state_server import StateServer

log = structlog.get_logger()

_COUNTERS = re.compile(r"(?P<name>[a-z]+(?:-[0-9a-f]{16})?)\.[0-9]+")
"""A file that a worker of this gateway writes."""
_ABOUT = "about.json"
_STOPS = "stops"
"""The only counters beside all splits."""
_FIELD = re.compile(r"(?P<file>(?:[0-9]+(?:-[0-9]+)*/)?[a-z]+(?:-[0-9a-f]{16})?)\.(?P<gateway>[A-Za-z0-9_-]+)")
_LARGEST = 1 << 26
"""Bytes of counters that are taken over at most."""
_SECONDS = KEPT_DAYS * 86400

Files = dict[str, bytes]
"""Contents by path below the folder of an experiment, without the number of a worker."""


class SharedFigures:
    """The part of the synchronizer.

    Args:
        server: the state server.
        folder: of the figures of this gateway.
        gateway: its name.
        served: the keys of the experiments that are served now.
    """

    def __init__(self, server: StateServer, folder: Path, gateway: str, served: Callable[[], Iterable[str]]) -> None:
        self._server, self._folder, self._gateway, self._served = server, folder, gateway, served
        self._taken: dict[str, dict[bytes, bytes]] = {}
        self.channels: Mapping[str, Callable[[bytes], Awaitable[None]]] = {}

    def is_due(self) -> bool:
        """Never: others may see figures a second late."""
        return False

    async def look(self) -> None:
        """Give this gateway's figures and take those of the others, as far as they have changed."""
        for key in self._served():
            stamps = self._names(key)[1]
            there = await self._server.run(partial(_all_of, stamps))
            await self._give(key, there)
            await self._take(key, there)

    async def _give(self, key: str, there: Mapping[bytes, bytes]) -> None:
        counters, abouts = await asyncio.to_thread(_read, self._folder / key)
        changed = {}
        for file, data in counters.items():
            digest = blake2b(data, digest_size=16).digest()
            # Also what a server that was started anew has lost.
            if there.get(f"{file}.{self._gateway}".encode()) != digest:
                changed[file] = digest
        if not changed:
            return
        blobs = {
            f"{file}.{self._gateway}": await asyncio.to_thread(zlib.compress, counters[file], 1) for file in changed
        }
        names = self._names(key)

        async def give(redis: Any) -> None:
            async with redis.pipeline(transaction=True) as pipeline:
                for split, about in abouts.items():
                    pipeline.hsetnx(names[2], split, about)  # the first one stays, as in the folder
                # Numbers and stamps in one step: whoever sees a stamp finds its numbers.
                for field, blob in blobs.items():
                    pipeline.hset(names[0], field, blob)
                    pipeline.hset(names[1], field, changed[field.rpartition(".")[0]])
                for name in names:
                    pipeline.expire(name, _SECONDS)
                await pipeline.execute()

        await self._server.run(give)

    async def _take(self, key: str, found: Mapping[bytes, bytes]) -> None:
        numbers, _, about = self._names(key)
        known = self._taken.setdefault(key, {})
        own = f".{self._gateway}".encode()
        changed = [field for field, stamp in found.items() if known.get(field) != stamp and not field.endswith(own)]
        if not changed:
            return
        blobs = await self._server.run(lambda redis: redis.hmget(numbers, changed))
        abouts = await self._server.run(partial(_all_of, about))
        await asyncio.to_thread(self._lay, key, zip(changed, blobs, strict=True), abouts)
        known |= {field: found[field] for field in changed}

    def _lay(self, key: str, blobs: Iterable[tuple[bytes, bytes | None]], abouts: Mapping[bytes, bytes]) -> None:
        """Lay others' counters beside those of this gateway."""
        from gateway.experiments.stratum import size_of  # imports NumPy, which gateways without experiments lack

        folder = self._folder / key
        for field, blob in blobs:
            match = _FIELD.fullmatch(field.decode("utf-8", "replace"))
            if match is None or blob is None:
                continue
            unpacker = zlib.decompressobj()
            try:
                data = unpacker.decompress(blob, _LARGEST)
            except zlib.error:
                data = b""
            split, _, name = match["file"].rpartition("/")
            # Counters of another size would spoil every sum.
            expected = size_of(split, name) if split else _size_of_stops(folder)
            if len(data) != expected:
                log.error("figures.rejected", gateway=match["gateway"], file=match["file"], bytes=len(data))
                continue
            (folder / split).mkdir(parents=True, exist_ok=True)
            _replace(folder / split / f"{name}.{match['gateway']}-0", data)
        # Last: with it a split is seen, and then it is to have its numbers.
        for split, about in ((each.decode(), about) for each, about in abouts.items()):
            path = folder / split / _ABOUT
            if path.parent.is_dir() and not path.exists():
                _replace(path, about)

    def _names(self, key: str) -> tuple[str, str, str]:
        """Where counters are, their stamps, and since when splits are served."""
        return (
            self._server.key("figures", key),
            self._server.key("figures", key, "stamps"),
            self._server.key("figures", key, "about"),
        )


async def _all_of(name: str, redis: Any) -> Mapping[bytes, bytes]:
    found: Mapping[bytes, bytes] = await redis.hgetall(name)
    return found


def _read(folder: Path) -> tuple[Files, Files]:
    """The counters of this gateway, added up over its workers, and what is known of splits, by their names."""
    import numpy as np

    sums: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for file, name in _own_files(folder):
        counted = np.fromfile(file)
        sums[name] = sums[name] + counted if name in sums else counted
    abouts = {about.parent.name: about.read_bytes() for about in folder.glob(f"*/{_ABOUT}")}
    return {name: total.tobytes() for name, total in sums.items() if total.any()}, abouts


def _own_files(folder: Path) -> Iterator[tuple[Path, str]]:
    for file in (*folder.glob(f"{_STOPS}.*"), *folder.glob("*/*")):
        if found := _COUNTERS.fullmatch(file.name):
            split = "" if file.parent == folder else f"{file.parent.name}/"
            yield file, split + found["name"]


def _size_of_stops(folder: Path) -> int:
    return next((file.stat().st_size for file in folder.glob(f"{_STOPS}.*")), -1)


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(data)
    new.replace(path)  # a reader finds the old file or the new one, never a part
