"""Processes that are started again when they end: the gateway's workers and engines, and a backend's own engine."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec
import structlog

log = structlog.get_logger()

_POLL_INTERVAL = 0.05  # seconds
_STOPPED_AT_MOST = 60.0
"""Seconds that a process may be stopped (SIGSTOP). The links to an engine notice earlier that it does not answer, but
they need a connection, which an engine has not that was stopped early in its start.
"""
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_prctl: Callable[[int, int], int] = ctypes.CDLL(None).prctl
"""Looked up here: between fork and exec, another thread's lock on the loader would never be freed."""


class BackOff(msgspec.Struct, frozen=True):
    """How long to wait before a process is started again; all in seconds.

    Attributes:
        first: after its first end.
        step: after the next one, if `first` is 0; then twice as long each time.
        longest: at most; also after an attempt to start that failed.
        forgiven_after: a process that has run for longer than this starts with `first` again.
    """

    first: float = 0.0
    step: float = 0.5
    longest: float = 2.0
    forgiven_after: float = 5.0

    def after(self, delay: float) -> float:
        """Return the delay that follows `delay`."""
        return min(max(self.step, 2 * delay), self.longest)  # doubling alone would stay at 0 after a `first` of 0


class SupervisedProcess:
    """A process that is started again whenever it ends, later and later if it does not last.

    It has no thread and no event loop of its own: its owner calls `poll` every few milliseconds, and `stop` at the end.

    Args:
        name: for the log.
        start: starts the process.
        back_off: the delays.
        on_exit: called with the exit code each time the process has ended by itself.
        is_hung: whether the process is to be killed because it does nothing any more; asked at each `poll`.

    Raises:
        OSError: it cannot be started the first time.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], subprocess.Popen[bytes]],
        back_off: BackOff,
        on_exit: Callable[[int], None] = lambda _: None,
        is_hung: Callable[[float], bool] = lambda _: False,
    ) -> None:
        self.name = name
        self._start = start
        self._back_off = back_off
        self._on_exit = on_exit
        self._is_hung = is_hung
        self._delay = back_off.first
        self._start_at: float | None = None  # set while the process is down: when it is started again
        self._stopped_since: float | None = None
        # Monotonic: a change of the system's clock must neither delay a restart nor forgive a crash loop.
        self._started_at = time.monotonic()
        self.process = start()

    @property
    def ended(self) -> bool:
        """Whether the process has ended and has not been started again yet."""
        # The process may have ended since the last `poll`.
        return self._start_at is not None or self.process.poll() is not None

    def poll(self, now: float) -> None:
        """Notice the end of the process, and start it again when its delay is over; `now` is of `time.monotonic`."""
        if self._start_at is not None:
            if now >= self._start_at:
                self._start_again(now)
        elif (code := self.process.poll()) is not None:
            # It ran long enough: this is no crash loop.
            if now - self._started_at > self._back_off.forgiven_after:
                self._delay = self._back_off.first
            log.warning("process.exited", process=self.name, code=code, restart_in=self._delay)
            self._start_at = now + self._delay
            self._delay = self._back_off.after(self._delay)
            # Last, so that the callback sees `ended`.
            self._on_exit(code)
        else:
            self.kill_if_hung(now)

    def kill_if_hung(self, now: float) -> None:
        """Kill the process if it runs and does nothing any more; the next `poll` starts it again."""
        if not self.ended and (self._is_hung(now) or self._is_stopped(now)):
            log.error("process.hung", process=self.name)
            self.process.kill()  # SIGKILL also ends a process that is stopped

    def _is_stopped(self, now: float) -> bool:
        """Whether the process has been stopped for too long."""
        if not is_stopped(self.process):
            self._stopped_since = None
            return False
        self._stopped_since = self._stopped_since or now
        return now - self._stopped_since > _STOPPED_AT_MOST

    def signal(self, number: int) -> None:
        """Send a signal, if the process runs."""
        if not self.ended:
            self.process.send_signal(number)

    def _start_again(self, now: float) -> None:
        try:
            self.process = self._start()
        except OSError as error:  # no memory or no process number left, which may be why it ended
            log.error("process.not_started", process=self.name, error=str(error), retry_in=self._back_off.longest)
            self._start_at = now + self._back_off.longest
        else:
            self._started_at = now
            self._start_at = None


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child process runs no more because of SIGSTOP; it may go on later."""
    if process.poll() is not None:
        return False
    # WNOWAIT: the answer stays the same until the process goes on.
    # WEXITED: the process may have ended since `poll`; without this flag, that is ECHILD.
    state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return state is not None and state.si_code == os.CLD_STOPPED


def stop(processes: Sequence[SupervisedProcess], timeout: float, number: int = signal.SIGTERM) -> None:
    """Send a signal to all processes, and SIGKILL to those that hang or still run after `timeout` seconds. Blocks."""
    for each in processes:
        # All are signalled first, so that they stop side by side and share one timeout.
        each.signal(number)
    deadline = time.monotonic() + timeout
    running = list(processes)
    while running and (now := time.monotonic()) < deadline:
        for each in running:
            each.kill_if_hung(now)
        running = [each for each in running if each.process.poll() is None]
        if running:
            with suppress(subprocess.TimeoutExpired):
                running[0].process.wait(min(_POLL_INTERVAL, max(0.0, deadline - now)))
    for each in running:
        if each.process.poll() is None:
            log.warning("process.killed", process=each.name, timeout=timeout)
            each.process.kill()
        # Reaps the process, so that no zombie stays.
        each.process.wait()


def start_bound_to_parent(
    command: Sequence[str], environment: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when this one ends, however it does, and whatever state that one is in.

    It has a session of its own: Ctrl-C at a terminal is handled here, and requests in flight still need the process.

    Args:
        command: starts it.
        environment: its variables; None: those of this process.
        stdin: as for `subprocess.Popen`.
    """
    # The kernel watches the thread that forks, not the process (prctl(2)): call this from a thread that lives as long.
    return subprocess.Popen(  # noqa: S603
        command,
        env=environment,
        stdin=stdin,
        start_new_session=True,
        preexec_fn=partial(signal_at_parents_end, signal.SIGKILL, os.getpid()),  # noqa: PLW1509
    )


def signal_at_parents_end(number: signal.Signals, parent: int) -> None:
    """Make the kernel send this process a signal when its parent ends; runs between fork and exec.

    Args:
        number: the signal.
        parent: the process id of the parent, which may be 1: in a container, the gateway is the first process.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    # The parent may have ended between the fork and `prctl`; no signal comes then, and there is another parent.
    if os.getppid() != parent:
        os._exit(1)
