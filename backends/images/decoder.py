"""Decodes pictures in a child process that is killed if it takes too long; the next picture gets a new one."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path

from backends.images.child import REPLY, REQUEST
from backends.images.header import Format
from backends.images.options import ImageOptions
from schemas.errors import InvalidRequest

_SCRIPT = Path(__file__).with_name("child.py")


class Decoder:
    """One child, one picture at a time; started when first needed."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options
        self._turn = asyncio.Lock()
        self._child: Process | None = None

    async def decode(self, data: bytes, format: Format) -> tuple[int, int, bytes]:
        """Width, height and RGB bytes, row by row.

        Raises:
            schemas.errors.InvalidRequest: it cannot be decoded, or not within the limits.
        """
        async with self._turn:
            try:
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
            raise InvalidRequest("The image is damaged.")
        return found

    async def aclose(self) -> None:
        """Kill the child. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _started(self) -> Process:
        if self._child is None or self._child.returncode is not None:
            arguments = ("-I", str(_SCRIPT), str(self._options.decode_memory))
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={}
            )
        return self._child


async def _ask(child: Process, data: bytes, format: Format) -> tuple[int, int, bytes] | None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(REQUEST.pack(format.encode().ljust(4), len(data)) + data)
    await child.stdin.drain()
    width, height = REPLY.unpack(await child.stdout.readexactly(REPLY.size))
    if width == 0:
        return None
    return width, height, await child.stdout.readexactly(width * height * 3)
