"""A process that the supervisor keeps alive."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

log = structlog.get_logger()

_FIRST_DELAY = 0.5  # seconds before a child is started a second time
_LASTED = 5.0  # seconds of life after which a child's end is its first again
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True, eq=False)
class Child:
    """A process that is started again whenever it ends: at once the first time, later and later if it does not last."""

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    longest_delay: float
    process: subprocess.Popen[bytes] = field(init=False)
    delay: float = 0.0
    began: float = 0.0
    again_at: float | None = None

    def __post_init__(self) -> None:
        self._begin()

    def tend(self, now: float) -> None:
        """Look after it: notice its end, start it again when the time has come."""
        if self.again_at is not None:
            if now >= self.again_at:
                self._begin_again(now)
        elif (code := self.process.poll()) is not None:
            if now - self.began > _LASTED:
                self.delay = 0.0
            log.warning("child.ended", child=self.name, code=code, again_in=self.delay)
            self.again_at = now + self.delay
            self.delay = min(max(_FIRST_DELAY, self.delay * 2), self.longest_delay)

    def signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if not self.ended:
            self.process.send_signal(number)

    @property
    def ended(self) -> bool:
        """Whether it has ended, and was not started again yet."""
        return self.again_at is not None or self.process.poll() is not None

    def _begin_again(self, now: float) -> None:
        try:
            self._begin()
        except OSError as error:  # no memory or process to be had, which may be why it ended
            log.error("child.not_started", child=self.name, error=str(error), again_in=self.longest_delay)
            self.again_at = now + self.longest_delay

    def _begin(self) -> None:
        self.began = time.monotonic()
        self.process = self.start()
        self.again_at = None


def end(children: Sequence[Child], limit: float) -> None:
    """Ask children to end, and make them after `limit` seconds."""
    for child in children:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + limit
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("child.killed", child=child.name)
            child.process.kill()
            child.process.wait()


def dying_with_us(command: Sequence[str]) -> Callable[[], subprocess.Popen[bytes]]:
    """How to start a process that does not outlive this one."""
    # A session of its own: Ctrl-C at a terminal is the supervisor's to handle, after the workers have drained.
    return lambda: subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_parent)  # noqa: S603, PLW1509


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)
