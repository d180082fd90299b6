"""The supervisor: starts what serves, and keeps it running: listening sockets, engines, and HTTP workers.

Strategy: single-threaded and synchronous, as it takes no part in requests. It listens and hands its sockets to N
workers; each native backend has one engine process, or several (`replicas`), which all workers share. All of them end
with the supervisor, however it ends: workers watch their standard input, which it holds open, and finish their streams;
the kernel kills engines, and continues workers that are stopped. A worker whose event loop does not turn any more is
replaced (`heartbeat`).

On SIGHUP it reads the configuration again. The workers of the new configuration (a generation) start beside the old
ones, share their sockets, and listen once every endpoint can answer; then the old ones finish their streams and exit.
An engine whose options are the same is kept.

On SIGUSR2 a second supervisor is started in the same way as this one, with new code if that has been installed
(`successor`). It serves beside this one from the moment when its workers listen; then this one ends.

Commands ask for either through a socket (`control`), and wait for what becomes of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import structlog

from backends.process import BackOff, SupervisedProcess, signal_at_parents_end, start_bound_to_parent, stop
from backends.standby import EngineCommand, WarmProcess
from gateway.config import Config, ConfigError
from gateway.config.changes import changes, described
from gateway.process.control import Action, ControlSocket
from gateway.process.folder import SharedFolder
from gateway.process.generation import Generation
from gateway.process.heartbeat import Heartbeat
from gateway.process.listeners import addresses, listen
from gateway.process.orders import Orders
from gateway.process.orphans import reap_orphans
from gateway.process.service_manager import READY, STOPPING, notify, notify_reloading, status
from gateway.process.startup import StartupMonitor
from gateway.process.successor import Predecessor, Successor
from gateway.process.wakeups import Wakeups
from gateway.registry import with_engines

log = structlog.get_logger()

_ENGINE_STOP_TIMEOUT = 5.0  # seconds that an engine gets to end after the workers have
_WORKER_STOP_TIMEOUT = 1.0  # seconds that a worker gets that serves nobody
_DRAIN_MARGIN = 5.0  # seconds beyond the configured drain times before a worker is killed
_POLL_INTERVAL = 0.05
_IDLE_INTERVAL = 0.5
"""Seconds between two turns while nothing starts or ends: as often as workers beat (`heartbeat`)."""
_ENGINE_BACK_OFF = BackOff(longest=2.0)
_WORKER_BACK_OFF = BackOff(longest=1.0)


class Supervisor:
    """Runs a configuration.

    Args:
        read: reads the configuration, at the start and on each SIGHUP.
        log_level: for the workers.
        predecessor: the supervisor that started this one, if one did.

    Raises:
        ConfigError: the configuration is invalid, an address cannot be listened on, or a backend does not exist.
    """

    def __init__(
        self, read: Callable[[], Config], log_level: str = "info", predecessor: Predecessor | None = None
    ) -> None:
        self._read = read
        self.config = read()
        # The sockets outlive every worker: while workers are replaced, the kernel queues connections on them.
        self._sockets = listen(self.config)
        self._folder = SharedFolder()
        try:
            # Only for its errors: a wrong engine option is reported before any process starts.
            with_engines(self.config, self._folder.path)
        except BaseException:
            self.close()
            raise
        self._log_level = log_level
        self._stop_requested = False
        self._reload_requested = False
        self._restart_requested = False
        self._predecessor = predecessor or Predecessor()
        self._successor: Successor | None = None
        self._current: Generation | None = None
        self._next: Generation | None = None
        self._leaving: list[Generation] = []
        self._generations = count()
        self._heartbeats: dict[SupervisedProcess, Heartbeat] = {}
        self._control: ControlSocket | None = None  # from the moment when this one serves

    @property
    def ports(self) -> list[int]:
        """The ports that it listens on: the configured ones, or the free ones that were found for 0."""
        return [int(each.getsockname()[1]) for each in self._sockets]

    def run(self, startup: StartupMonitor | None = None) -> int:
        """Serve until SIGTERM or SIGINT, or until `startup` says that serving has failed. Return the exit code."""
        # Handlers only set flags: `run` acts on them at its next turn, never in the middle of a step.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)
        # At a terminal SIGHUP means that the terminal is gone.
        signal.signal(signal.SIGHUP, self._request_stop if sys.stdin.isatty() else self._request_reload)
        signal.signal(signal.SIGUSR2, self._request_restart)
        current = self._start(self.config)
        failed = self._predecessor.waits and not self._succeed(current)
        self._current = current
        self._control = ControlSocket(self._folder.path, self._sockets)
        wakeups, replaced = Wakeups(), False
        # Every 50 ms while anything starts or ends, else when there is something to do: 1. start the generation that
        # SIGHUP asks for; 2. switch to it once it listens; 3. stop engines that nobody uses; 4. restart processes that
        # ended; 5. start the supervisor that SIGUSR2 asks for, and leave once it serves.
        while not self._stop_requested and not failed and not replaced:
            asked = self._control.requests()
            self._restart_requested |= "restart" in asked
            if self._reload_requested or "reload" in asked:
                self._reload_requested = False
                self._prepare(current)
            current = self._take_over(current)
            self._stop_unused_engines()
            # Only the current generation is restarted: one that is starting is dropped if a process ends, one that
            # leaves is meant to end.
            for process in current.processes:
                process.poll(time.monotonic())
            reap_orphans()
            replaced = self._is_replaced()
            failed = startup is not None and not startup.poll()
            is_restless = self._is_changing(current) or (startup is not None and not startup.done)
            wakeups.wait(_POLL_INTERVAL if is_restless else _IDLE_INTERVAL, self._control.descriptors)
        wakeups.close()
        self._end(current, failed=failed, replaced=replaced)
        # The interpreter gives handlers up before it ends: a second signal would be the exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return 1 if failed else 0

    def _is_changing(self, current: Generation) -> bool:
        """Whether a process is starting, or is to be started soon, of which nothing tells when it is time."""
        is_new = self._next is not None or self._successor is not None
        return is_new or any(each.ended for each in current.processes)

    def _end(self, current: Generation, *, failed: bool, replaced: bool) -> None:
        """Stop all processes. Streams finish first, unless serving has failed."""
        # Whoever looks for a server finds the next one from now on.
        if self._control is not None:
            self._control.close()
        if not replaced:
            notify(STOPPING)
        if self._successor is not None and not replaced:
            self._successor.stop()
        if self._next is not None:
            self._drop(self._next, current)
        # Workers have descriptors of their own: the socket closes, and refuses connections, when the last worker has
        # emptied its queue. Held open here, it would queue connections that nobody accepts.
        self._close_sockets()
        drain = current.config.server.drain_delay + current.config.server.drain_timeout + _DRAIN_MARGIN
        # Workers end before engines: answers in flight still need them.
        running = [current, *self._leaving]
        # SIGINT: others accept connections already, so that no drain delay is needed.
        number = signal.SIGINT if replaced else signal.SIGTERM
        stop([worker for each in running for worker in each.workers], _WORKER_STOP_TIMEOUT if failed else drain, number)
        stop([engine for each in running for engine in each.engines.values()], _ENGINE_STOP_TIMEOUT)
        self._forget(worker for each in running for worker in each.workers)
        self.close()

    def _succeed(self, first: Generation) -> bool:
        """Wait until the first workers listen, and release the supervisor before this one; False if that fails."""
        while not self._stop_requested:
            if any(process.ended for process in first.processes):
                self._predecessor.refuse("one of its endpoints cannot answer")  # for which a worker ends
                return False
            if all(self._listening_mark(worker.process.pid).exists() for worker in first.workers):
                self._predecessor.release()
                return True
            time.sleep(_POLL_INTERVAL)
        self._predecessor.refuse("it was stopped")
        return False

    def _is_replaced(self) -> bool:
        """Start a successor if that was asked for; whether one serves."""
        if self._restart_requested:
            self._restart_requested = False
            if self._successor is not None:
                self._successor.stop()
                self._successor = None
            notify_reloading()
            try:
                self._successor = Successor(self._sockets)
            except OSError as error:  # no memory or no process number left
                log.error("successor.not_started", error=str(error))
                self._decide("restart", done=False, text=str(error))
        if (successor := self._successor) is None:
            return False
        state = successor.poll()
        if state == "failed":
            self._successor = None
            self._decide("restart", done=False, text=successor.why)
        elif state == "serving":
            # The process that systemd takes for the main one must say so; from then on the next one speaks.
            notify(f"MAINPID={successor.pid}", READY)
            self._decide("restart", done=True, text=str(successor.pid))
        return state == "serving"

    def _decide(self, action: Action, *, done: bool, text: str) -> None:
        """Tell what became of a reload or a restart."""
        if not done:
            notify(READY, status(f"{action} refused: {text}"))
        if self._control is not None:
            self._control.answer(action, done=done, text=text)

    def close(self) -> None:
        """Close the listening sockets and remove the folder of the processes. They must have ended."""
        self._close_sockets()
        self._folder.remove()

    def _close_sockets(self) -> None:
        for listener in self._sockets:
            listener.close()

    def _request_stop(self, *_: Any) -> None:
        self._stop_requested = True

    def _request_reload(self, *_: Any) -> None:
        self._reload_requested = True

    def _request_restart(self, *_: Any) -> None:
        self._restart_requested = True

    def _prepare(self, current: Generation) -> None:
        """Read the configuration and start its processes. An invalid one changes nothing. A generation that still waits
        for its backends is dropped.
        """
        # A bad reload must not end a server that works: the error is logged and the current generation goes on.
        notify_reloading()
        try:
            config = self._read()
            if addresses(config) != addresses(self.config):
                raise ConfigError("an address to listen on can only be changed by a restart")
            if self._next is not None:
                # If `_start` raises after this, `_next` still names the dropped generation, and `_take_over` clears it.
                self._drop(self._next, current)
            self._next = self._start(config)
        except (ConfigError, OSError) as error:  # also: no memory, no process number or no descriptor left
            self._reject(str(error))

    def _reject(self, error: str) -> None:
        log.error("config.rejected", error=error)
        self._decide("reload", done=False, text=error)

    def _take_over(self, current: Generation) -> Generation:
        """Return the generation that is to serve: the next one once all its workers listen, until then the current."""
        if (next := self._next) is None:
            return current
        # With `serving` set, a worker exits if one of its endpoints cannot answer (`Service.settled`). Engines that
        # both generations share are not judged here: the current generation restarts them.
        if any(process.ended for process in (*_without(next.engines, current.engines).values(), *next.workers)):
            self._reject("one of its endpoints cannot answer")
            self._drop(next, current)
            self._next = None
            return current
        if not all(self._listening_mark(worker.process.pid).exists() for worker in next.workers):
            return current
        # A file that was cut at the end of a section looks like one that was edited: the log says what is gone.
        changed = changes(current.config, next.config)
        log.info("config.applied", **changed)
        notify(READY, status("reloaded"))
        self._decide("reload", done=True, text=described(changed))
        self._current, self._next = next, None
        # SIGINT, not SIGTERM: the new workers listen on the same sockets already, so no drain delay is needed.
        for worker in current.workers:
            worker.signal(signal.SIGINT)
        # An engine that the next generation has, too, is not the leaving one's to stop.
        self._leaving.append(Generation(current.config, _without(current.engines, next.engines), current.workers))
        return next

    def _stop_unused_engines(self) -> None:
        """Stop the engines of generations whose workers have all ended; kill those workers that hang."""
        for worker in [worker for each in self._leaving for worker in each.workers]:
            worker.kill_if_hung(time.monotonic())
        for gone in [each for each in self._leaving if all(worker.ended for worker in each.workers)]:
            stop(list(gone.engines.values()), _ENGINE_STOP_TIMEOUT)
            self._forget(gone.workers)
            self._leaving.remove(gone)

    def _drop(self, next: Generation, current: Generation) -> None:
        stop(next.workers, _WORKER_STOP_TIMEOUT)
        self._forget(next.workers)
        stop(list(_without(next.engines, current.engines).values()), _ENGINE_STOP_TIMEOUT)

    def _start(self, config: Config) -> Generation:
        """Start the processes of a configuration, or none of them.

        Raises:
            ConfigError: a backend's options are wrong.
            OSError: a process cannot be started: there is no memory, no process number or no descriptor left.
        """
        config, commands = with_engines(config, self._folder.path)
        before = self._current or Generation(config, {}, [])
        made = Generation(config, {}, [])
        # A generation has slots of its own: workers of two generations run side by side, and a slot has one writer. A
        # worker that is restarted gets the slot of the one that died, and continues its files.
        generation = next(self._generations)
        try:
            for name, command in commands.items():
                # The command holds a digest of the options (`with_engines`): an equal command is an engine to keep.
                made.engines[command] = before.engines.get(command) or _engine(name, command)
            for number in range(config.server.workers):
                made.workers.append(self._worker(config, number, f"worker-{generation}-{number}"))
        except OSError:
            self._drop(made, before)
            raise
        return made

    def _worker(self, config: Config, number: int, slot: str) -> SupervisedProcess:
        heartbeat = Heartbeat(config.server.hung_after)
        start = partial(self._start_worker, config, slot, heartbeat)
        try:
            worker = SupervisedProcess(f"worker {number}", start, _WORKER_BACK_OFF, is_hung=heartbeat.is_hung)
        except OSError:
            heartbeat.close()
            raise
        self._heartbeats[worker] = heartbeat
        return worker

    def _forget(self, workers: Iterable[SupervisedProcess]) -> None:
        """Close the pipes of workers that have ended and are not started again."""
        for worker in workers:
            if (heartbeat := self._heartbeats.pop(worker, None)) is not None:
                heartbeat.close()
            if worker.process.stdin is not None:
                worker.process.stdin.close()

    def _start_worker(self, config: Config, slot: str, heartbeat: Heartbeat) -> subprocess.Popen[bytes]:
        descriptors = tuple(listener.fileno() for listener in self._sockets)
        beats = heartbeat.pipe(time.monotonic())
        # A session of its own: Ctrl-C at a terminal reaches the supervisor only, which then ends the workers in order.
        # Its standard input ends with its parent; a worker that is stopped must run to notice.
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", "from gateway.process.imports import run; run('gateway.process.worker')"],
                stdin=subprocess.PIPE,
                pass_fds=(*descriptors, self._folder.lock, beats),
                start_new_session=True,
                # This process has one thread.
                preexec_fn=partial(signal_at_parents_end, signal.SIGCONT, os.getpid()),  # noqa: PLW1509
            )
        finally:
            os.close(beats)
        assert process.stdin is not None
        # Of an earlier worker whose process id the kernel has given to this one.
        self._listening_mark(process.pid).unlink(missing_ok=True)
        # A worker of the next generation waits until its endpoints can answer; the first ones, and restarted ones,
        # listen at once. The first ones of a successor wait, too: until then its predecessor answers.
        first = not self._predecessor.waits if self._current is None else self._current.config is config
        orders = Orders(
            config,
            descriptors,
            self._log_level,
            folder=str(self._folder.path / "experiments"),
            slot=slot,
            serving=None if first else str(self._listening_mark(process.pid)),
            heartbeat=beats,
        )
        # One line. The pipe then stays open: its end means that the supervisor is gone.
        try:
            process.stdin.write(msgspec.json.encode(orders) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:  # it has ended already, which the next `poll` notices
            with suppress(BrokenPipeError):  # what is still buffered cannot be written here, either, and is given up
                process.stdin.close()
        return process

    def _listening_mark(self, pid: int) -> Path:
        """Return the file that a worker makes when it listens."""
        return self._folder.path / f"serving-{pid}"


def _engine(name: str, command: EngineCommand) -> SupervisedProcess:
    start = partial(start_bound_to_parent, command.arguments)
    if command.warm:
        return WarmProcess(name, start, _ENGINE_BACK_OFF)
    return SupervisedProcess(name, start, _ENGINE_BACK_OFF)


def _without(
    engines: Mapping[EngineCommand, SupervisedProcess], others: Collection[EngineCommand]
) -> dict[EngineCommand, SupervisedProcess]:
    return {command: engine for command, engine in engines.items() if command not in others}
