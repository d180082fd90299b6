"""Decodes pictures in child processes that are killed if they take too long; the next picture gets a new one.

Two of them, so that a picture made to take long does not stop everybody else's.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from backends.images.child import HERE, REPLY, REQUEST
from backends.images.header import Format
from backends.images.options import ImageOptions
from schemas.errors import InvalidRequest, Overloaded

_SCRIPT = Path(__file__).with_name("child.py")
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "1048576"}  # what a picture took goes back to the system after it
_CHILDREN = 2
_MOST_WAITING = 64
_PIECE = 1 << 20
_STARTING = 60.0  # seconds that a child may take to be there, which is not the picture's fault


class Decoder:
    """Takes turns with its children."""

    def __init__(self, options: ImageOptions) -> None:
        self._children = [_Child(options) for _ in range(_CHILDREN)]
        self._free = list(self._children)
        self._turns = asyncio.Semaphore(_CHILDREN)
        self._waiting = 0

    @asynccontextmanager
    async def decoded(self, data: bytes, format: Format) -> AsyncIterator[tuple[int, int, bytearray]]:
        """Width, height and RGB bytes, row by row. The turn lasts as long as the block, so that only so many pictures
        are held at once.

        Raises:
            schemas.errors.InvalidRequest: it cannot be decoded, or not within the limits.
            schemas.errors.Overloaded: too many others wait.
        """
        if self._waiting >= _MOST_WAITING:
            raise Overloaded("Too many images wait to be decoded.", retry_after=1.0)
        self._waiting += 1
        try:
            async with self._turns:
                child = self._free.pop()
                try:
                    yield await child.decode(data, format)
                finally:
                    self._free.append(child)
        finally:
            self._waiting -= 1

    async def aclose(self) -> None:
        """Kill the children. Idempotent."""
        for child in self._children:
            await child.aclose()


class _Child:
    """One process, one picture at a time; started when first needed."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options
        self._child: Process | None = None

    async def decode(self, data: bytes, format: Format) -> tuple[int, int, bytearray]:
        """See `Decoder`."""
        try:
            async with asyncio.timeout(_STARTING):
                child = await self._started()
            async with asyncio.timeout(self._options.decode_seconds):
                found = await _ask(child, data, format)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            await self.aclose()
            raise InvalidRequest("The image cannot be decoded within the limits.") from error
        except BaseException:  # cancelled in the middle: the child's next words would be about another picture
            await self.aclose()
            raise
        if found is None:
            raise InvalidRequest("The image is damaged, or takes more memory to decode than it may.")
        return found

    async def aclose(self) -> None:
        """Kill the child. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
            assert child.stdout is not None
            while await child.stdout.read(_PIECE):
                pass  # asyncio does not see the end of a pipe that it has stopped reading, and would wait for ever
            await child.wait()

    async def _started(self) -> Process:
        if self._child is None or self._child.returncode is not None:
            arguments = ("-I", str(_SCRIPT), str(self._options.decode_memory))
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=_ENVIRONMENT
            )
            assert self._child.stdout is not None
            await self._child.stdout.readexactly(len(HERE))
        return self._child


async def _ask(child: Process, data: bytes, format: Format) -> tuple[int, int, bytearray] | None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(REQUEST.pack(format.encode().ljust(4), len(data)))
    child.stdin.write(data)
    await child.stdin.drain()
    width, height = REPLY.unpack(await child.stdout.readexactly(REPLY.size))
    if width == 0:
        return None
    return width, height, await _read(child.stdout, width * height * 3)


async def _read(stream: asyncio.StreamReader, length: int) -> bytearray:
    """So many bytes, held once. (`readexactly` gathers all of them before it copies them.)"""
    found = bytearray(length)
    read = 0
    while read < length:
        piece = await stream.read(min(_PIECE, length - read))
        if not piece:
            raise asyncio.IncompleteReadError(b"", length)
        found[read : read + len(piece)] = piece
        read += len(piece)
    return found
