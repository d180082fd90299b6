"""The engine process of a backend that no supervisor runs one for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from backends.native.protocol.addresses import TcpAddress
from backends.native.protocol.engine_options import EngineOptions, is_json
from backends.process import BackOff, SupervisedProcess, start_bound_to_parent, stop
from backends.standby import WarmProcess

# The repository root or `site-packages`: the folder from which `backends` is imported, 3 levels above this one.
_ROOT = Path(__file__).resolve().parents[3]
_POLL_INTERVAL = 0.05  # seconds
_BACK_OFF = BackOff(first=0.5, longest=10.0, forgiven_after=10.0)


class EngineProcess:
    """Keeps an engine running, from the event loop.

    Args:
        command: starts the engine.
        on_exit: called with the exit code each time the engine has ended by itself.
        warm: whether the command waits for a line on standard input, and another process of it is kept in waiting.
        stop_timeout: seconds that its last step may take after SIGTERM.
        back_off: the delays before it is started again.
    """

    def __init__(
        self,
        command: list[str],
        on_exit: Callable[[int], None],
        *,
        warm: bool = False,
        stop_timeout: float = 10.0,
        back_off: BackOff = _BACK_OFF,
    ) -> None:
        self._command = command
        self._on_exit = on_exit
        self._warm = warm
        self._stop_timeout = stop_timeout
        self._back_off = back_off
        self._process: SupervisedProcess | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the engine; it listens a moment later.

        Raises:
            OSError: it cannot be started.
        """
        make = WarmProcess if self._warm else SupervisedProcess
        self._process = make("engine", self._spawn, self._back_off, self._on_exit)
        self._task = asyncio.create_task(self._keep_running(self._process), name="engine-process")

    @property
    def pid(self) -> int:
        """Of the latest process; 0: none was started."""
        return self._process.process.pid if self._process is not None else 0

    def kill(self) -> None:
        """Kill the present process, however stuck it is; the next one is started."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)

    async def aclose(self) -> None:
        """Stop the engine, and do not start it again. Idempotent."""
        if self._task is None or self._process is None:
            return
        # First the task, so that it does not start the engine again; then the engine. `stop` blocks until the process
        # has ended, hence the thread.
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        await asyncio.to_thread(stop, [self._process], self._stop_timeout)

    async def _keep_running(self, process: SupervisedProcess) -> None:
        while True:
            # `poll` does not block: it calls `waitpid` with WNOHANG.
            process.poll(time.monotonic())
            await asyncio.sleep(_POLL_INTERVAL)

    def _spawn(self, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        # The engine must import the same code as this process, also if this one was started from a checkout.
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        return start_bound_to_parent(self._command, {**os.environ, "PYTHONPATH": path}, stdin)


def engine_command(
    options: EngineOptions,
    address: Path | TcpAddress,
    *,
    warm: bool | Literal["loaded"] = False,
    secret_env: str | None = None,
) -> list[str]:
    """Return the command of an engine; `engine.serving.__main__` reads the options back.

    Args:
        options: the engine's.
        address: where it listens: a Unix socket's path, or a TCP address.
        warm: whether it only does its imports, or "loaded": also loads the model, and then waits for a line on standard
            input.
        secret_env: the environment variable with the secret of connections over TCP.
    """
    where = ["--socket", str(address)] if isinstance(address, Path) else [f"--listen={address}"]
    command = [sys.executable, "-m", "backends.native.engine.serving", *where]
    command += [f"--secret-env={secret_env}"] if secret_env is not None else []
    command += [f"--standby={'loaded' if warm == 'loaded' else 'imported'}"] if warm else []
    for field in msgspec.structs.fields(EngineOptions):
        flag, value = field.name.replace("_", "-"), getattr(options, field.name)
        # `--flag=value` in one argument: argparse would take a separate value that begins with a dash for an option.
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        elif is_json(field.type):
            command.append(f"--{flag}={msgspec.json.encode(value).decode()}")
        else:
            command.append(f"--{flag}={value}")
    return command
