"""The worker's end of an engine: sequences go out, their outputs come back to whoever asked.

One `EngineLink` for each engine and worker. It survives the engine: if that dies, it connects to the next one, and asks
again for what is unfinished. What may have killed two engines is asked for last: alone it is refused; of several only
one at a time is tried, until it gets beyond the place where they died, and refused if it is there that this one dies.
Nothing is generated for nobody: closing an `Exchange` cancels what it still waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import structlog

from backends.base import Health
from backends.native.client.channels import Channel, Connect
from backends.native.client.inflight import Exchange
from backends.native.protocol.messages import Failed, FromEngine, Loading, Ping, Pong, Ready, Step, Submit, ToEngine
from schemas.errors import BackendUnavailable, GatewayError

log = structlog.get_logger()

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 0.5
"""Seconds between attempts to connect; each is twice the one before."""
_LOADING = 10
"""How many times as long an engine may be silent while it loads: a single import may keep its other threads from it."""


class EngineLink:
    """Keeps the way to an engine open.

    `ready` is what the engine says of itself, None while there is none; `known` is what one said last. `pong` is its
    last answer to a ping.

    Args:
        connect: how to reach it.
        heartbeat: seconds between pings.
        hung_after: seconds of silence after which the engine is killed; ten times as many while it loads.
        patience: seconds that requests wait for the next engine.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        heartbeat: float = 1.0,
        hung_after: float = 30.0,
        patience: float = 30.0,
    ) -> None:
        self._connect = connect
        self._heartbeat = heartbeat
        self._hung_after = hung_after
        self._patience = patience
        self._next_seq = 0
        self._pings = count()
        self._exchanges: dict[int, Exchange] = {}
        self._channel: Channel | None = None
        self._unheard = 0
        self._health = Health("loading")
        self._held = False  # whether an exchange waits for another to prove harmless
        self._decided = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._impatience: asyncio.TimerHandle | None = None
        self.ready: Ready | None = None
        self.known: Ready | None = None
        self.pong: Pong | None = None

    @property
    def health(self) -> Health:
        """The state now."""
        return self._health

    @property
    def busy(self) -> bool:
        """Whether anybody waits for anything."""
        return bool(self._exchanges)

    async def start(self) -> Ready:
        """Connect, however long the engine takes to load. May be called again after it failed and was closed.

        Raises:
            schemas.errors.BackendUnavailable: it says that it cannot load.
        """
        self._health = Health("loading")
        self._decided.clear()
        self._task = asyncio.create_task(self._run(), name="engine-link")
        await self._decided.wait()
        if self.ready is None:
            raise BackendUnavailable(f"The engine did not start: {self._health.detail.removesuffix('.')}.")
        return self.ready

    async def aclose(self) -> None:
        """Give up the way, and what is still waited for. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._be_patient()
        self._fail_all(BackendUnavailable("The engine was stopped."))

    def reserve(self, number: int) -> range:
        """Sequence numbers nobody else uses."""
        first, self._next_seq = self._next_seq, self._next_seq + number
        return range(first, self._next_seq)

    def submit(self, submits: Sequence[Submit]) -> Exchange:
        """Ask for sequences, under reserved numbers; the exchange must be given to `release`.

        Between two engines it waits for the next.

        Raises:
            schemas.errors.BackendUnavailable: there is no engine, and none is expected.
        """
        if self.ready is None and self._impatience is None:
            raise BackendUnavailable("The engine is not ready.", retry_after=1.0)
        exchange = Exchange(submits, self._send)
        for submit in submits:
            self._exchanges[submit.seq] = exchange
        if self.ready is not None:
            exchange.submit()
        return exchange

    def release(self, exchange: Exchange) -> None:
        """Cancel what is unfinished, and forget it."""
        exchange.close()
        for submit in exchange.submits:
            self._exchanges.pop(submit.seq, None)
        if self._held:
            self._ask()

    def abandon(self, why: str) -> None:
        """The engine that `start` waits for will not come up; later it is waited for."""
        if not self._decided.is_set():
            self._fail(why)

    def _fail(self, why: str) -> None:
        self._be_patient()
        self._health = Health("failed", why)
        self._decided.set()
        self._fail_all(BackendUnavailable("The engine did not start again."))

    async def _run(self) -> None:
        delay = _FIRST_DELAY
        while True:
            if await self._session():
                delay = _FIRST_DELAY
            await asyncio.sleep(delay)
            delay = min(_LONGEST_DELAY, 2 * delay)

    async def _session(self) -> bool:
        """Connect, and stay until the engine is gone; whether it was ever ready."""
        lost = asyncio.Event()
        try:
            self._channel = await self._connect(self._deliver, lost.set)
        except OSError:
            return False
        try:
            await self._watch(lost)
        finally:
            channel, self._channel = self._channel, None
            was_ready, self.ready = self.ready is not None, None
            await channel.aclose()
        if was_ready:
            log.error("engine.lost", requests=len(self._waiting()))
            self._health = Health("loading", "the engine is started again")
            self._sort_out()
            self._expect()
        return was_ready

    async def _watch(self, lost: asyncio.Event) -> None:
        """Return once the engine is gone, or has been silent for too long.

        Silence is counted in pings, not seconds, so that a pause of our own is not taken for one of the engine's.
        """
        self._unheard = 0
        while not lost.is_set():
            loading = self.ready is None
            limit = self._hung_after * (_LOADING if loading else 1)
            self._unheard += 1
            if self._unheard * self._heartbeat > limit:
                log.error("engine.hung", seconds=limit, loading=loading)
                assert self._channel is not None
                self._channel.kill()
                if not loading:
                    return
                self._unheard = 0
            if not loading:
                self._send(Ping(next(self._pings)))
            with suppress(TimeoutError):  # not `wait_for`, which before Python 3.12 may swallow a cancellation
                async with asyncio.timeout(self._heartbeat):
                    await lost.wait()

    def _deliver(self, message: FromEngine) -> None:
        self._unheard = 0
        match message:
            case Step():
                for output in message.outputs:
                    if (exchange := self._exchanges.get(output.seq)) is not None:
                        exchange.put(output)
                if self._held:
                    self._ask()
            case Pong():
                self.pong = message
            case Loading():
                self._health = Health("loading", f"{message.what} {message.fraction:.0%}".strip())
                if self._decided.is_set():
                    self._expect()
            case Ready():
                self._welcome(message)
            case Failed():
                log.error("engine.failed", why=message.why)
                self._fail(message.why)

    def _welcome(self, ready: Ready) -> None:
        self._be_patient()
        self.ready = self.known = ready
        self._health = Health("ready")
        self._decided.set()
        self._ask()

    def _ask(self) -> None:
        """Ask for what was not asked for yet, but of suspects for one at a time."""
        waiting = self._waiting()
        tried = any(exchange.asked and exchange.suspect for exchange in waiting)
        self._held = False
        for exchange in waiting:
            if not exchange.asked and self.ready is not None:
                if exchange.suspect and tried:
                    self._held = True
                else:
                    exchange.submit()
                    tried = tried or exchange.suspect

    def _sort_out(self) -> None:
        """The engine is gone: what is unfinished is asked again, unless it must be what killed it."""
        waiting = self._waiting()
        tried = [exchange for exchange in waiting if exchange.asked and exchange.suspect]
        suspects = [exchange for exchange in waiting if exchange.rewind()]
        guilty = [exchange for exchange in tried if exchange in suspects] or suspects
        if len(guilty) == 1:
            guilty[0].fail_dead()

    def _expect(self) -> None:
        """Another engine is on its way: requests wait for it, but not for ever."""
        if self._impatience is None:
            loop = asyncio.get_running_loop()
            self._impatience = loop.call_later(self._patience, self._fail, "the engine did not start again")

    def _be_patient(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def _fail_all(self, error: GatewayError) -> None:
        for exchange in self._waiting():
            exchange.fail(error)

    def _waiting(self) -> list[Exchange]:
        """The unfinished exchanges, each once, in the order they came."""
        return [exchange for exchange in dict.fromkeys(self._exchanges.values()) if exchange.unfinished]

    def _send(self, message: ToEngine) -> None:
        if self._channel is not None:
            self._channel.send(message)
