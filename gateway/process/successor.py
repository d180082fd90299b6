"""A restart onto new code: a second supervisor is started by the same command, takes the listening sockets over, and
says when its workers listen; then the first one finishes its streams and ends.

The sockets are never closed, so that no connection is refused. A successor that ends before it serves (its code does
not start, its configuration is wrong, a model does not load) changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NoReturn

import structlog

from gateway.process.listeners import FIRST_DESCRIPTOR

log = structlog.get_logger()

_VARIABLE = "INTERLINGUA_PREDECESSOR"
"""Names the descriptor of the pipe to the supervisor before."""
_CANNOT_EXECUTE = 127
_STOP_TIMEOUT = 60.0
"""Seconds: more than a supervisor takes whose workers serve nobody."""
_POLL_INTERVAL = 0.05
_SERVES = "."
_LONGEST_REASON = 4096
"""Bytes: what a pipe takes as a whole (pipe(7))."""

State = Literal["starting", "serving", "failed"]


class Successor:
    """The supervisor's side: starts the next supervisor, and knows what became of it.

    Args:
        sockets: handed over, in the order of the configuration.

    Attributes:
        pid: its process id.
        why: why it failed.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self.why = ""
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        # Not `subprocess`: LISTEN_PID must be known before `exec`, and descriptors must have certain numbers. A
        # supervisor has one thread, so that `fork` copies no lock that somebody holds.
        self.pid = os.fork()
        if self.pid == 0:
            _execute([*(each.fileno() for each in sockets), writer])
        os.close(writer)
        log.info("successor.started", pid=self.pid)

    def poll(self) -> State:
        """What it does now. A failure is logged, with the exit code."""
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        said = self._read()
        if not ended and said == _SERVES:
            log.info("successor.took_over", pid=self.pid)
            return "serving"
        self.why = self.why or said.removeprefix(_SERVES)
        if not ended:
            return "starting"
        code = os.waitstatus_to_exitcode(status)
        log.error("successor.failed", pid=self.pid, code=code)
        self.why = self.why or f"it ended with exit code {code} before it could answer; the server's log says why"
        os.close(self._reader)
        return "failed"

    def stop(self) -> None:
        """Stop one that is still starting. Blocks until it has ended, or is killed for it has not."""
        os.kill(self.pid, signal.SIGTERM)
        until = time.monotonic() + _STOP_TIMEOUT
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() > until:
                log.error("successor.killed", pid=self.pid, after=_STOP_TIMEOUT)
                os.kill(self.pid, signal.SIGKILL)  # its workers and engines end with it
                os.waitpid(self.pid, 0)
                break
            time.sleep(_POLL_INTERVAL)
        os.close(self._reader)

    def _read(self) -> str:
        with suppress(BlockingIOError):
            return os.read(self._reader, _LONGEST_REASON).decode(errors="replace")
        return ""


class Predecessor:
    """The successor's side: the supervisor that started this one, if one did.

    Attributes:
        waits: whether one serves until this one does.
    """

    def __init__(self) -> None:
        given = os.environ.pop(_VARIABLE, None)
        self._writer = int(given) if given is not None else None
        if self._writer is not None:
            os.set_inheritable(self._writer, False)

    @property
    def waits(self) -> bool:
        """Whether one serves until this one does."""
        return self._writer is not None

    def release(self) -> None:
        """Tell it that this one serves."""
        self._say(_SERVES)

    def refuse(self, why: str) -> None:
        """Tell it why this one will not serve."""
        self._say(why)

    def _say(self, text: str) -> None:
        if self._writer is not None:
            with suppress(BrokenPipeError):  # it was killed
                os.write(self._writer, text.encode()[:_LONGEST_REASON])
            os.close(self._writer)
            self._writer = None


def _execute(descriptors: list[int]) -> NoReturn:
    """Become the successor, with descriptors from `FIRST_DESCRIPTOR` on. For a process that was just forked."""
    try:
        # First above all the numbers that they shall have. All other descriptors are closed by `exec` (PEP 446).
        above = FIRST_DESCRIPTOR + len(descriptors)
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in descriptors]
        for number, each in enumerate(moved, FIRST_DESCRIPTOR):
            os.dup2(each, number)
        more = {"LISTEN_FDS": str(len(moved) - 1), "LISTEN_PID": str(os.getpid()), _VARIABLE: str(above - 1)}
        # `orig_argv`, as `argv` lacks the interpreter's own arguments; `executable` is absolute.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | more)  # noqa: S606
    finally:
        os._exit(_CANNOT_EXECUTE)
