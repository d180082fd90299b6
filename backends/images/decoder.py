"""Decodes images in child processes (`backends.images.child`), which are killed if they exceed their CPU time.

Two of them, so that one image made to decode slowly does not block all others (head-of-line blocking).
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from backends.images.child import READY, REPLY, REQUEST
from backends.images.header import Format
from backends.images.options import ImageOptions
from schemas.errors import InvalidRequest, Overloaded

_SCRIPT = Path(__file__).with_name("child.py")
# The whole environment of a child: it sees no keys. A fixed threshold also turns off glibc's dynamic one, which grows
# with each large buffer that is freed and then keeps such buffers in the heap (mallopt(3)).
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "1048576"}  # buffers of an image return to the system when freed
_PROCESSES = 2
_MAX_WAITING = 64  # images, those being decoded included; each holds its file in memory
_WALL_FACTOR = 6
"""Times the CPU time of an image that its decoding may take on a busy machine."""
_READ_SIZE = 1 << 20
_START_TIMEOUT = 60.0  # seconds; separate, because a slow start is not the fault of the image


class Decoder:
    """A pool of decoding processes, with a bounded queue."""

    def __init__(self, options: ImageOptions) -> None:
        self._processes = [_DecoderProcess(options) for _ in range(_PROCESSES)]
        # The semaphore has a permit for each process, so whoever holds one finds `_free` not empty.
        self._free = list(self._processes)
        self._slots = asyncio.Semaphore(_PROCESSES)
        self._waiting = 0

    @asynccontextmanager
    async def decoded(self, data: bytes, format: Format) -> AsyncIterator[tuple[int, int, bytearray]]:
        """Decode an image to width, height and RGB bytes, row by row.

        The process is held until the block ends, so that no more than two decoded images exist at once.

        Raises:
            schemas.errors.InvalidRequest: the image cannot be decoded, or not within the limits.
            schemas.errors.Overloaded: the machine is too busy, or too many others are waiting.
        """
        if self._waiting >= _MAX_WAITING:
            raise Overloaded("Too many images wait to be decoded.", retry_after=1.0)
        self._waiting += 1
        try:
            async with self._slots:
                process = self._free.pop()
                try:
                    yield await process.decode(data, format)
                finally:
                    # Also after a kill: a process starts its child again at the next use.
                    self._free.append(process)
        finally:
            self._waiting -= 1

    async def aclose(self) -> None:
        """Kill the processes. Idempotent."""
        for process in self._processes:
            await process.aclose()


class _DecoderProcess:
    """One child process, which decodes one image at a time. Started at first use and again after a kill."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options
        self._child: Process | None = None

    async def decode(self, data: bytes, format: Format) -> tuple[int, int, bytearray]:
        """Decode an image; see `Decoder.decoded`."""
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                # Two timeouts: the time to start is not taken from the image's.
                child = await self._started()
            async with asyncio.timeout(_WALL_FACTOR * self._options.decode_seconds):
                decoded = await _request(child, data, format, self._options.decode_seconds)
        # The child has not used up its CPU time: the machine is too busy, which is not the client's fault.
        except TimeoutError as error:
            await self.aclose()
            raise Overloaded("The image could not be decoded in time.", retry_after=1.0) from error
        # The child died: ended by the system for its CPU time or memory, or by an error while it wrote the pixels.
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            await self.aclose()
            raise InvalidRequest("The image cannot be decoded within the limits.") from error
        except BaseException:  # cancelled: the pipe still holds the rest of this image, which the next would read
            await self.aclose()
            raise
        # A reply of zeros: the child is in order and decodes the next image.
        if decoded is None:
            raise InvalidRequest("The image is damaged, or takes more memory to decode than it may.")
        return decoded

    async def aclose(self) -> None:
        """Kill the child. Idempotent."""
        # Taken before the awaits below, so that no second caller waits for the same child.
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
            assert child.stdout is not None
            while await child.stdout.read(_READ_SIZE):
                pass  # asyncio does not notice the end of a pipe whose reading is paused: `wait` would never return
            await child.wait()

    async def _started(self) -> Process:
        # The second case: the child ended between two images.
        if self._child is None or self._child.returncode is not None:
            # Isolated mode: neither PYTHON* variables nor the working directory can change what is imported.
            arguments = ("-I", str(_SCRIPT), str(self._options.decode_memory))
            # Kept before it is ready, so that `aclose` also ends a child whose start timed out or was cancelled.
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=_ENVIRONMENT
            )
            assert self._child.stdout is not None
            await self._child.stdout.readexactly(len(READY))
        return self._child


async def _request(child: Process, data: bytes, format: Format, seconds: float) -> tuple[int, int, bytearray] | None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(REQUEST.pack(format.encode().ljust(4), len(data), seconds))
    child.stdin.write(data)
    # The child reads the whole request before it writes, so two full pipes cannot wait for each other.
    await child.stdin.drain()
    width, height = REPLY.unpack(await child.stdout.readexactly(REPLY.size))
    if width == 0:
        return None
    return width, height, await _read(child.stdout, width * height * 3)


async def _read(stream: asyncio.StreamReader, length: int) -> bytearray:
    """Read `length` bytes into one buffer. (`readexactly` would hold them twice.)"""
    buffer = bytearray(length)
    read = 0
    while read < length:
        chunk = await stream.read(min(_READ_SIZE, length - read))
        if not chunk:  # the child died in the middle of the pixels
            raise asyncio.IncompleteReadError(b"", length)
        buffer[read : read + len(chunk)] = chunk
        read += len(chunk)
    return buffer
