"""An engine process of the backend's own, for when no supervisor runs one: started, started again, stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM

import msgspec
import structlog

from backends.native.protocol.engine_options import EngineOptions

log = structlog.get_logger()

_ROOT = Path(__file__).resolve().parents[3]
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 10.0
"""Seconds before it is started again; each time twice as many, until it ran for long."""


class EngineProcess:
    """Keeps an engine running.

    Args:
        command: how to start it.
        on_exit: told each time it ended by itself, with its exit code.
        stop_limit: seconds that its last step may take.
    """

    def __init__(self, command: list[str], on_exit: Callable[[int], None], *, stop_limit: float = 10.0) -> None:
        self._command = command
        self._on_exit = on_exit
        self._stop_limit = stop_limit
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it; it listens a moment later."""
        self._process = await self._spawn()
        self._task = asyncio.create_task(self._keep(self._process), name="engine-process")

    async def aclose(self) -> None:
        """Stop it, and do not start another. Idempotent."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        if self._process is not None:
            await self._stop(self._process)

    async def _keep(self, process: asyncio.subprocess.Process) -> None:
        delay = _FIRST_DELAY
        while True:
            started = asyncio.get_running_loop().time()
            code = await process.wait()
            log.error("engine.exited", code=code)
            self._on_exit(code)
            if asyncio.get_running_loop().time() - started > _LONGEST_DELAY:
                delay = _FIRST_DELAY
            await asyncio.sleep(delay)
            delay = min(_LONGEST_DELAY, 2 * delay)
            self._process = process = await self._spawn_again(delay)

    async def _spawn_again(self, delay: float) -> asyncio.subprocess.Process:
        while True:
            try:
                return await self._spawn()
            except OSError as error:  # no memory or process to be had, which may be why the last one ended
                log.error("engine.not_started", error=str(error), again_in=delay)
                await asyncio.sleep(delay)

    async def _spawn(self) -> asyncio.subprocess.Process:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        return await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for us: requests in flight still need the engine
        )

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        self._signal(SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self._stop_limit)
        except TimeoutError:
            self._signal(SIGKILL)
            await process.wait()

    def _signal(self, signum: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):  # it has just ended
                self._process.send_signal(signum)


def engine_command(options: EngineOptions, socket: Path) -> list[str]:
    """How an engine is started that listens on `socket`; `engine.process` reads the options back."""
    command = [sys.executable, "-m", "backends.native.engine.serving", "--socket", str(socket)]
    for field in msgspec.structs.fields(EngineOptions):
        flag, value = field.name.replace("_", "-"), getattr(options, field.name)
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict):
            command.append(f"--{flag}={msgspec.json.encode(value).decode()}")
        else:
            command.append(f"--{flag}={value}")
    return command
