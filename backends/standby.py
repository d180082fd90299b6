"""A process in waiting: it has done its imports, and takes the place of another one that ends.

Such a process may be an engine: how a backend's engines are started is here, too.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import structlog

from backends.process import BackOff, SupervisedProcess, is_stopped

log = structlog.get_logger()

_SETTLING = 10.0
"""Seconds after a start before the next process is made to wait: two that import side by side are both late."""


class Start(Protocol):
    """Starts a process."""

    def __call__(self, *, stdin: int) -> subprocess.Popen[bytes]:
        """Start one whose standard input is as given, as for `subprocess.Popen`."""
        ...


class WarmProcess(SupervisedProcess):
    """A supervised process with a second one in waiting.

    Args:
        name, back_off, on_exit: as for `SupervisedProcess`.
        start: starts a process that prepares itself, waits for a line on standard input, and then does its work. If its
            input ends instead, it ends.
        settling: seconds after a start before the next process is started.

    Raises:
        OSError: it cannot be started the first time.
    """

    def __init__(
        self,
        name: str,
        start: Start,
        back_off: BackOff,
        on_exit: Callable[[int], None] = lambda _: None,
        *,
        settling: float = _SETTLING,
    ) -> None:
        self._start_waiting = start
        self._settling = settling
        self._waiting: subprocess.Popen[bytes] | None = None
        self._next_at = 0.0  # when the next process is started, on the clock of `time.monotonic`
        super().__init__(name, self._call, back_off, on_exit)

    def poll(self, now: float) -> None:
        """Keep the process running, as `SupervisedProcess` does, and another one waiting."""
        super().poll(now)
        if not self.ended and now >= self._next_at and self._callable() is None:
            self._drop_waiting()
            # One that cannot even wait is not started again at once.
            self._next_at = now + self._settling
            try:
                self._waiting = self._start_waiting(stdin=subprocess.PIPE)
            except OSError as error:  # no memory or no process number left: the process itself runs
                log.error("standby.not_started", process=self.name, error=str(error), retry_in=self._settling)

    def signal(self, number: int) -> None:
        """Send the process a signal, and end the one in waiting: whoever signals wants an end."""
        super().signal(number)
        self._drop_waiting()

    def _callable(self) -> subprocess.Popen[bytes] | None:
        """The process in waiting. One that is stopped would take the call and never answer."""
        waiting = self._waiting
        return waiting if waiting is not None and waiting.poll() is None and not is_stopped(waiting) else None

    def _drop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.kill()
            self._waiting.communicate()  # closes its input, and reaps it
            self._waiting = None

    def _call(self) -> subprocess.Popen[bytes]:
        """Call the process in waiting, or start one that need not wait."""
        called = self._callable()
        if called is None:
            self._drop_waiting()
            called = self._start_waiting(stdin=subprocess.PIPE)
        self._waiting = None
        assert called.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, which the next `poll` notices
            called.stdin.write(b"\n")
            called.stdin.close()
        self._next_at = time.monotonic() + self._settling
        return called


class EngineCommand(msgspec.Struct, frozen=True):
    """How a supervisor starts an engine of a backend (`StartsEngines`).

    Attributes:
        arguments: the program and its arguments.
        address: where it listens.
        warm: whether the program only prepares itself and then waits for a line on standard input, so that a second
            process of it can be kept in waiting.
    """

    arguments: tuple[str, ...]
    address: str
    warm: bool = False


@runtime_checkable
class StartsEngines(Protocol):
    """A backend's class whose engines a supervisor can start, so that workers share them."""

    def engine_commands(self, options: Mapping[str, Any], path: Path) -> tuple[EngineCommand, ...]:
        """The commands that start the engines; none, if the backend runs in the worker.

        Args:
            options: the backend's.
            path: the engines' sockets are to be beside it, with names that begin like its.

        Raises:
            msgspec.ValidationError: the options are wrong.
        """
        ...

    def shared_options(self, options: Mapping[str, Any], commands: Sequence[EngineCommand]) -> dict[str, Any]:
        """The options for a worker that is to use the engines of these commands."""
        ...
