"""A worker's client of one engine: submits sequences, routes their outputs, survives the engine's death.

Strategy:
- One task keeps a connection: it connects with exponential back-off, sends a `Ping` each heartbeat, and kills an engine
  that is silent for too long.
- If the engine dies, unfinished requests wait for the next one, for `reconnect_timeout` seconds at most, and are
  submitted to it again (`inflight` drops the tokens that it replays).
- A request in flight during two engine crashes at the same token is quarantined: retried alone, rejected if the engine
  dies again at the same token. If only one request qualifies, it is rejected without another try. Requests that are not
  quarantined never wait for one that is.
- Releasing an `InFlightRequest` cancels its unfinished sequences, so that no tokens are generated without a reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

import structlog
from msgspec.structs import replace

from backends.base import Health
from backends.native.client.inflight import InFlightRequest
from backends.native.client.transports import Connect, Transport
from backends.native.protocol.messages import (
    Failed,
    FromEngine,
    Loading,
    Manage,
    Managed,
    Ping,
    Pong,
    Ready,
    Step,
    Submit,
    ToEngine,
)
from schemas.errors import BackendUnavailable

log = structlog.get_logger()

_FIRST_DELAY, _MAX_DELAY = 0.05, 0.5
"""Seconds between attempts to connect; each delay is twice the one before."""
_LOADING_FACTOR = 10
"""How many times longer an engine may be silent while it loads: a single import may block its other threads."""


class EngineClient:
    """Keeps a connection to an engine, and the requests in flight over it.

    `ready` describes the present engine, None while there is none or it loads; `last_ready` describes the last one.
    `pong` is the latest answer to a ping. `on_ready` is called with every description.

    Args:
        connect: opens a transport to the engine.
        heartbeat: seconds between pings.
        hung_after: seconds of silence after which the engine is killed; ten times as many while it loads.
        reconnect_timeout: seconds that requests wait for the next engine.
    """

    def __init__(self, connect: Connect, *, heartbeat: float, hung_after: float, reconnect_timeout: float) -> None:
        self._connect = connect
        self._heartbeat = heartbeat
        self._hung_after = hung_after
        self._reconnect_timeout = reconnect_timeout
        self._next_seq = 0
        self._pings = count()
        self._in_flight: dict[int, InFlightRequest] = {}  # by seq: a request is there once per sequence
        self._transport: Transport | None = None
        self._silent_pings = 0
        self._was_ready = False  # whether the engine of the present connection has ever been
        self._health = Health("loading")
        self._quarantine_waits = False  # whether a quarantined request waits for another one's trial
        self._start_decided = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reconnect_timer: asyncio.TimerHandle | None = None
        self._managing: dict[int, asyncio.Future[str | None]] = {}  # by token
        self.on_ready: Callable[[Ready], None] = lambda _: None
        self.ready: Ready | None = None
        self.last_ready: Ready | None = None
        self.pong: Pong | None = None

    @property
    def health(self) -> Health:
        """The engine's state now."""
        return self._health

    @property
    def busy(self) -> bool:
        """Whether any request is in flight."""
        return bool(self._in_flight)

    async def start(self) -> Ready:
        """Connect, however long the engine takes to load. May be called again after a failure and `aclose`.

        Raises:
            schemas.errors.BackendUnavailable: the engine cannot load.
        """
        self._health = Health("loading")
        self._start_decided.clear()
        self._task = asyncio.create_task(self._run(), name="engine-client")
        await self._start_decided.wait()
        if self.ready is None:
            raise BackendUnavailable(f"The engine did not start: {self._health.detail.removesuffix('.')}.")
        return self.ready

    async def aclose(self) -> None:
        """Disconnect, and fail all requests in flight. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._fail_requests("The engine was stopped.")

    def reserve_seqs(self, number: int) -> range:
        """Sequence numbers that are unique on this client."""
        first, self._next_seq = self._next_seq, self._next_seq + number
        return range(first, self._next_seq)

    def submit(self, submits: Sequence[Submit]) -> InFlightRequest:
        """Submit sequences under reserved numbers, now or to the next engine. The caller must `release` the request.

        Raises:
            schemas.errors.BackendUnavailable: there is no engine, and none is expected.
        """
        # A running timer means that another engine is expected: the request is accepted and waits for it. Without a
        # timer nothing would ever end the wait.
        if self.ready is None and self._reconnect_timer is None:
            raise BackendUnavailable("The engine is not ready.", retry_after=1.0)
        request = InFlightRequest(submits, self.send)
        for seq in request.seqs:
            self._in_flight[seq] = request
        # A new request is never quarantined, so it need not wait for the trial of another one. Without an engine,
        # `Ready` submits it (`_submit_waiting`).
        if self.ready is not None:
            request.submit()
        return request

    async def manage(self, asked: Manage) -> str | None:
        """Have the engine change something, with a token of this client's; why it refuses, or None.

        Raises:
            schemas.errors.BackendUnavailable: there is no engine, or it ended meanwhile.
        """
        if self._transport is None:
            raise BackendUnavailable("The engine is not ready.", retry_after=1.0)
        token = next(self._pings)
        answer = self._managing[token] = asyncio.get_running_loop().create_future()
        try:
            self.send(replace(asked, token=token))
            why: str | None = await answer
        finally:
            self._managing.pop(token)
        return why

    def release(self, request: InFlightRequest) -> None:
        """Cancel the request's unfinished sequences, and forget it."""
        # The engine may have sent outputs before it reads the `Cancel`s: `_receive` drops outputs of unknown sequences.
        request.close()
        for seq in request.seqs:
            self._in_flight.pop(seq, None)
        # The released request may have been the one on trial: its reader may leave at any time.
        if self._quarantine_waits:
            self._submit_waiting()

    def fail_start(self, reason: str) -> None:
        """End a `start` in progress: the engine will not come up. Afterwards a lost engine is waited for instead."""
        # Once `start` has returned, an exit is no reason to fail: the process is started again, and the reconnect timer
        # bounds how long requests wait.
        if not self._start_decided.is_set():
            self._fail(reason)

    def expect_no_engine(self) -> None:
        """Wait for no engine after the present one."""
        self._reconnect_timeout = 0.0
        if self._reconnect_timer is not None:
            self._cancel_reconnect_timer()
            self._start_reconnect_timer()

    async def _run(self) -> None:
        """Connect again and again, with exponential back-off until an engine was ready."""
        delay = _FIRST_DELAY
        while True:
            # The delay follows a lost engine, too: its supervisor needs a moment to start the next one.
            if await self._serve_connection():
                delay = _FIRST_DELAY
            await asyncio.sleep(delay)
            delay = min(_MAX_DELAY, 2 * delay)

    async def _serve_connection(self) -> bool:
        """Connect, and return once the engine is gone; the result says whether it was ever ready."""
        lost = asyncio.Event()
        self._was_ready = False
        try:
            # No message arrives before `_connect` has returned (see `Connect`), and nothing is awaited between its
            # return and the assignment: `_receive` may answer at once through `_transport`.
            self._transport = await self._connect(self._receive, lost.set)
        # Usually nobody listens: the socket is missing (ENOENT), or an earlier engine left it behind (ECONNREFUSED).
        except OSError:
            return False
        try:
            await self._watch(lost)
        finally:
            # Both are cleared before the await: while the transport closes, other tasks must not submit to the lost
            # engine.
            transport, self._transport = self._transport, None
            for answer in self._managing.values():
                if not answer.done():
                    answer.set_exception(BackendUnavailable("The engine ended."))
            self.ready = None
            await transport.aclose()
        # `_was_ready` and not `ready`: an engine that loads again, as a woken one does, may hold requests.
        #
        # An engine that is lost while it loads for the first time starts no timer: `start` waits on until `fail_start`
        # or `Failed`, and requests wait until the timer that runs already fires. After a cancellation (`aclose`) this
        # part does not run.
        if self._was_ready:
            log.error("engine.lost", requests=len(self._unfinished()))
            self._health = Health("loading", "the engine is started again")
            self._engine_died()
            self._start_reconnect_timer()
        return self._was_ready

    async def _watch(self, lost: asyncio.Event) -> None:
        """Ping the engine until it is gone; kill it if it is silent for too long.

        Silence is counted in pings, not in seconds, so that a pause of this process does not count as the engine's.
        """
        self._silent_pings = 0
        while not lost.is_set():
            # This heartbeat counts as silent until a message arrives: `_receive` resets the count.
            loading = self.ready is None
            limit = self._hung_after * (_LOADING_FACTOR if loading else 1)
            self._silent_pings += 1
            if self._silent_pings * self._heartbeat > limit:
                log.error("engine.hung", seconds=limit, loading=loading)
                assert self._transport is not None
                self._transport.kill()
                # A ready engine's connection is given up even if the kill had no effect (an engine in another PID
                # namespace). A loading engine gets the same time again, unless the kill sets `lost`.
                if not loading:
                    return
                self._silent_pings = 0
            # The step loop answers pings. While the engine loads there is none; its process repeats `Loading` instead.
            if not loading:
                self.send(Ping(next(self._pings)))
            with suppress(TimeoutError):  # not `wait_for`, which before Python 3.12 may swallow a cancellation
                async with asyncio.timeout(self._heartbeat):
                    await lost.wait()

    def _receive(self, message: FromEngine) -> None:
        """Handle a message of the engine; every message is a sign of life."""
        self._silent_pings = 0
        match message:
            case Step():
                for output in message.outputs:
                    # None: the sequence was released, and its `Cancel` crossed this output on the way.
                    if (request := self._in_flight.get(output.seq)) is not None:
                        request.deliver(output, message.ended)
                # This step may have ended the trial, or brought it past the token at which engines died.
                if self._quarantine_waits:
                    self._submit_waiting()
            case Pong():
                self.pong = message
            case Managed():
                self._receive_managed(message)
            case Loading():
                self._receive_loading(message)
            case Ready():
                self._receive_ready(message)
            case Failed():
                log.error("engine.failed", why=message.why)
                self._fail(message.why)

    def _receive_managed(self, message: Managed) -> None:
        answer = self._managing.get(message.token)  # None: nobody waits any more
        if answer is not None and not answer.done():
            answer.set_result(message.error)

    def _receive_loading(self, message: Loading) -> None:
        # An engine that was ready loads again when it is woken: requests wait for its `Ready`.
        self.ready = None
        self._health = Health("loading", f"{message.what} {message.fraction:.0%}".strip())
        # After a failed wait no timer runs. An engine that loads is a reason to accept requests again (see `submit`); a
        # timer that runs already goes on.
        if self._start_decided.is_set():
            self._start_reconnect_timer()

    def _receive_ready(self, message: Ready) -> None:
        self._cancel_reconnect_timer()
        # `ready` is set before `_submit_waiting`, which submits nothing without it.
        self.ready = self.last_ready = message
        self._was_ready = True
        # With a detail, others are preferred where there is a choice, and background work leaves it alone.
        self._health = Health("ready", "asleep" if message.asleep else "")
        self.on_ready(message)
        self._start_decided.set()
        self._submit_waiting()

    def _submit_waiting(self) -> None:
        """Submit the requests that the present engine was not asked for, of quarantined ones one at a time."""
        unfinished = self._unfinished()
        # At most one quarantined request is on trial: if the engine dies again, it is known which request killed it.
        trial = any(request.submitted and request.quarantined for request in unfinished)
        self._quarantine_waits = False
        for request in unfinished:
            if request.submitted or self.ready is None:
                continue
            if request.quarantined and trial:
                self._quarantine_waits = True
            else:
                request.submit()
                trial = trial or request.quarantined

    def _engine_died(self) -> None:
        """Reject the poison request, if exactly one request can be it; the others wait for the next engine."""
        unfinished = self._unfinished()
        # Order matters: `engine_died` clears `submitted` and counts the crash, so it must be called once for every
        # unfinished request, after those on trial have been collected.
        on_trial = [request for request in unfinished if request.submitted and request.quarantined]
        candidates = [request for request in unfinished if request.engine_died()]
        # A request on trial that is a candidate again is the poison, whatever else was running. Without one, several
        # candidates are all quarantined, and their trials will single out the poison.
        poison = [request for request in on_trial if request in candidates] or candidates
        if len(poison) == 1:
            poison[0].reject()

    def _start_reconnect_timer(self) -> None:
        """Another engine is expected: requests wait for it until the timer fires."""
        if self._reconnect_timer is None:
            loop = asyncio.get_running_loop()
            self._reconnect_timer = loop.call_later(
                self._reconnect_timeout, self._fail, "the engine did not start again"
            )

    def _cancel_reconnect_timer(self) -> None:
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
            self._reconnect_timer = None

    def _fail(self, reason: str) -> None:
        """There is no engine, and none is expected."""
        # `_run` goes on connecting: an engine that comes up later makes the client ready again.
        self._health = Health("failed", reason)
        self._start_decided.set()
        self._fail_requests("The engine did not start again.")

    def _fail_requests(self, message: str) -> None:
        self._cancel_reconnect_timer()
        for request in self._unfinished():
            request.fail(BackendUnavailable(message))

    def _unfinished(self) -> list[InFlightRequest]:
        """The unfinished requests, each once, in order of submission."""
        # A dict keeps the order of insertion, which is that of submission, and `fromkeys` drops a request's
        # repetitions.
        return [request for request in dict.fromkeys(self._in_flight.values()) if request.unfinished]

    def send(self, message: ToEngine) -> None:
        """Send a message now; without an engine it is dropped."""
        # A `Cancel` for a lost engine is dropped: the engine's sequences are gone with it.
        if self._transport is not None:
            self._transport.send(message)
