"""A worker's link to one engine: connects, watches, and connects again.

Strategy: one task keeps the connection. It connects with exponential back-off, sends a `Ping` each heartbeat, tells its
owner of an engine that is silent, and kills one that is silent for too long. What an engine sends after its connection
was given up is never read, so that two engines, as an old and a new one at one address, are never taken for one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import Protocol

import structlog
from msgspec.structs import replace

from backends.affinity import Candidate
from backends.base import Health
from backends.native.client.transports import Connect, SecretRefused, Transport
from backends.native.protocol.blocks import split_keys
from backends.native.protocol.messages import (
    Cached,
    Failed,
    FromEngine,
    Loading,
    Manage,
    Managed,
    Ping,
    Pong,
    Ready,
    Step,
    ToEngine,
)
from schemas.errors import BackendUnavailable

log = structlog.get_logger()

_FIRST_DELAY, _MAX_DELAY = 0.05, 0.5
"""Seconds between attempts to connect; each delay is twice the one before."""
_LOADING_FACTOR = 10
"""How many times longer an engine may be silent while it loads: a single import may block its other threads."""
_ALIKE = ("vocab_size", "eos_token_ids", "dtype", "generates", "embedding_size", "image_tokens", "block_size")
"""What `Ready` must say alike of all engines of an owner, so that any of them can answer any request."""
_MISSED_PINGS = 3
"""Unanswered pings after which an engine is silent: others are preferred, and take over its requests."""


def together(described: Sequence[Ready]) -> Ready | None:
    """What several engines of a model can do together; None: there is none."""
    if not described:
        return None
    names = dict.fromkeys(name for ready in described for name in ready.lora_adapters)
    return replace(
        described[0],
        context_length=min(ready.context_length for ready in described),
        # A request is sent to an engine that has its LoRA adapter and is awake.
        lora_adapters=tuple(names),
        asleep=min(ready.asleep for ready in described),
    )


class LinkOwner(Protocol):
    """Whom a link tells of its engine."""

    def engine_stepped(self, link: EngineLink, step: Step) -> None:
        """It sent outputs."""
        ...

    def engine_cached(self, link: EngineLink, keys: list[bytes]) -> None:
        """Its prefix cache has the blocks with these keys, and no others."""
        ...

    def engine_loads(self, link: EngineLink) -> None:
        """It loads, and takes no requests before it is ready."""
        ...

    def engine_ready(self, link: EngineLink) -> None:
        """It is ready, or has changed (`EngineLink.ready`)."""
        ...

    def engine_silent(self, link: EngineLink) -> None:
        """It does not answer pings; nothing is known of it."""
        ...

    def engine_lost(self, link: EngineLink) -> None:
        """It was ready, and is gone."""
        ...

    def engine_failed(self, link: EngineLink) -> None:
        """It cannot load (`EngineLink.health`)."""
        ...


class EngineLink:
    """Keeps a connection to one engine.

    `ready` describes the present engine, None while there is none or it loads. `pong` is the latest answer to a ping,
    and `in_flight_then` what `in_flight` was when it came. `silent`: its step loop has not answered the latest pings.
    `leaving`: it is to get no further requests where there is another engine.

    Args:
        number: of the link among those of its owner.
        name: of the engine, for logs and metrics.
        connect: opens a transport to the engine.
        owner: called when something of the engine has changed.
        heartbeat: seconds between pings.
        hung_after: seconds of silence after which the engine is killed; ten times as many while it loads.
    """

    def __init__(
        self, number: int, name: str, connect: Connect, owner: LinkOwner, *, heartbeat: float, hung_after: float
    ) -> None:
        self.number = number
        self.name = name
        self._connect = connect
        self._owner = owner
        self._heartbeat = heartbeat
        self._hung_after = hung_after
        self._pings = count()
        self._transport: Transport | None = None
        self._silent_pings = 0
        self._was_ready = False  # whether the engine of the present connection has ever been
        self._task: asyncio.Task[None] | None = None
        self._managing: dict[int, asyncio.Future[str | None]] = {}  # by token
        self._clock: float | None = None  # see `clock`
        self.health = Health("loading")
        self.ready: Ready | None = None
        self.pong: Pong | None = None
        self.silent = False
        self.leaving = False
        self.in_flight = 0
        self.in_flight_then = 0

    @property
    def load(self) -> int:
        """The engine's sequences: those of this worker now, and those of other workers as of the latest pong."""
        return self.in_flight + self._others

    @property
    def _others(self) -> int:
        reported = self.pong.running + self.pong.waiting if self.pong is not None else 0
        return max(0, reported - self.in_flight_then)

    def candidate(self, hits: int) -> Candidate:
        """The engine for a request of whose prompt it has so many blocks."""
        # The share of the KV cache that sequences hold, as of the latest pong.
        pong = self.pong
        used = 1 - pong.free_blocks / pong.total_blocks if pong is not None and pong.total_blocks else 0.0
        return Candidate(self.name, self.load, hits, used, self._others)

    @property
    def clock(self) -> float:
        """Seconds to add to the engine's times: machines have clocks of their own."""
        return self._clock or 0.0

    def start(self) -> None:
        """Connect, and stay connected."""
        self.health = Health("loading")
        self._task = asyncio.create_task(self._run(), name=f"engine-link-{self.name}")

    async def aclose(self) -> None:
        """Disconnect. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def fail(self, reason: str) -> None:
        """Take the engine for one that cannot load, until it says more."""
        self.health = Health("failed", reason)
        self._owner.engine_failed(self)

    def unlike(self, others: Iterable[EngineLink]) -> str | None:
        """How the engine differs from others so that it cannot answer the same requests; None: it does not."""
        for other in others:
            for field in _ALIKE:
                mine, theirs = getattr(self.ready, field), getattr(other.ready, field)
                if mine != theirs:
                    return f"its {field} is {mine}, that of {other.name} is {theirs}"
        return None

    def send(self, message: ToEngine) -> None:
        """Send a message now; without an engine it is dropped."""
        # A `Cancel` for a lost engine is dropped: the engine's sequences are gone with it.
        if self._transport is not None:
            self._transport.send(message)

    async def manage(self, asked: Manage) -> str | None:
        """Have the engine change something, with a token of this link's; why it refuses, or None.

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
        except SecretRefused as error:
            if self.health.status != "failed":
                log.error("engine.refused", engine=self.name, error=str(error))
                self.fail(str(error))
            return False
        # Usually nobody listens: the socket is missing (ENOENT), or an earlier engine left it behind (ECONNREFUSED).
        except OSError:
            return False
        is_lost = False
        try:
            await self._watch(lost)
            is_lost = True
        finally:
            # All before the await: while the transport closes, other tasks must not submit to the lost engine.
            transport, self._transport = self._transport, None
            for answer in self._managing.values():
                if not answer.done():
                    answer.set_exception(BackendUnavailable("The engine ended."))
            self.ready = self.pong = self._clock = None
            self.in_flight_then = 0
            # `_was_ready` and not `ready`: an engine that loads again, as a woken one does, may hold requests. An
            # engine that is lost while it loads for the first time was sent none; nor is it lost by a cancellation
            # (`aclose`).
            if is_lost and self._was_ready:
                self.health = Health("loading", "the engine is started again")
                self._owner.engine_lost(self)
            await transport.aclose()
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
            if not loading and self._silent_pings == _MISSED_PINGS + 1:
                self.silent = True
                self._owner.engine_silent(self)
            if self._silent_pings * self._heartbeat > limit:
                log.error("engine.hung", engine=self.name, seconds=limit, loading=loading)
                assert self._transport is not None
                self._transport.kill()
                # A ready engine's connection is given up even if the kill had no effect (an engine in another PID
                # namespace, or on another machine). A loading engine gets the same time again, unless the kill sets
                # `lost`.
                if not loading:
                    return
                self._silent_pings = 0
            # The step loop answers pings. While the engine loads there is none; its process repeats `Loading` instead.
            if not loading:
                self.send(Ping(next(self._pings)))
            with suppress(TimeoutError):  # not `wait_for`, which before Python 3.12 may swallow a cancellation
                async with asyncio.timeout(self._heartbeat):
                    await lost.wait()
        # A new process will answer at its address. One that was given up above, in silence, stays silent until its step
        # loop says something: its socket's thread may still greet a new connection.
        self.silent = False

    def _receive(self, message: FromEngine) -> None:
        """Handle a message of the engine; every message is a sign of life."""
        if self._transport is None:  # given up, and about to be closed
            return
        self._silent_pings = 0
        match message:
            case Step():
                self.silent = False
                self._read_clock(message.ended)
                self._owner.engine_stepped(self, message)
            case Pong():
                self.silent = False
                self.pong, self.in_flight_then = message, self.in_flight
            case Cached():
                self._owner.engine_cached(self, split_keys(message.keys))
            case Managed():
                self._receive_managed(message)
            case Loading():
                # An engine that was ready loads again when it is woken: requests wait for its `Ready`.
                self.ready = None
                self.health = Health("loading", f"{message.what} {message.fraction:.0%}".strip())
                self._owner.engine_loads(self)
            case Ready():
                self.ready = message
                self._was_ready = True
                # With a detail, others are preferred where there is a choice, and background work leaves it alone.
                self.health = Health("ready", "asleep" if message.asleep else "")
                self._owner.engine_ready(self)
            case Failed():
                log.error("engine.failed", engine=self.name, why=message.why)
                self.fail(message.why)

    def _receive_managed(self, message: Managed) -> None:
        answer = self._managing.get(message.token)  # None: nobody waits any more
        if answer is not None and not answer.done():
            answer.set_result(message.error)

    def _read_clock(self, ended: float) -> None:
        """Compare the clocks: a step's message arrives at once, or later, but never before the step has ended."""
        if self._transport is not None and self._transport.remote and ended:
            ahead = time.monotonic() - ended
            self._clock = ahead if self._clock is None else min(self._clock, ahead)
