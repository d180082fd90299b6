"""A worker's client of a model's engines: submits sequences, routes their outputs, survives the death of engines.

Strategy:
- Each engine has a link (`EngineLink`). All engines of a client serve the same model, so that any of them can answer
  any request: a request goes to one of those that are ready (`backends.affinity`), and stays there. Engines report to
  all workers what they have cached: what a worker has learned from its own requests would soon be wrong.
- Engines may come and go (`use`). One that goes finishes what it has.
- If an engine dies, another one takes over its unfinished requests at once, with the tokens so far. If none is ready,
  they wait for the next one, for `reconnect_timeout` seconds at most.
- An engine that is silent may be dead or busy. Its requests are taken over, too, but only once each: what makes one
  engine silent might do so to all of them in turn.
- A request in flight during two engine crashes at the same token is quarantined: retried alone, rejected if an engine
  dies again at the same token. If only one request qualifies, it is rejected without another try. Requests that are not
  quarantined never wait for one that is. Crashes of all engines count, so a poison request kills no more of several
  engines than of one.
- Releasing an `InFlightRequest` cancels its unfinished sequences, so that no tokens are generated without a reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from random import random

import structlog

from backends.affinity import AffinityPolicy, PrefixIndex, choose, destination, draws
from backends.base import Health
from backends.native.client.engine_link import EngineLink, together
from backends.native.client.inflight import InFlightRequest
from backends.native.client.transports import Connect
from backends.native.protocol.blocks import split_keys
from backends.native.protocol.messages import Manage, Ready, Step, Submit, Watch
from schemas.errors import BackendUnavailable

log = structlog.get_logger()


class EngineClient:
    """Keeps links to the engines of a model, and the requests in flight over them.

    `ready` describes what the present engines can do together, None while none is ready; `last_ready` describes the
    last ones. `on_ready` is called with every description.

    Args:
        connects: open a transport to an engine each; by the engine's name, which is for logs and metrics.
        heartbeat: seconds between pings.
        hung_after: seconds of silence after which an engine is killed; ten times as many while it loads.
        reconnect_timeout: seconds that requests wait for the next engine.
        routing: how one of several engines is chosen.
    """

    def __init__(
        self,
        connects: Mapping[str, Connect],
        *,
        heartbeat: float,
        hung_after: float,
        reconnect_timeout: float,
        routing: AffinityPolicy = "prefix",
    ) -> None:
        self._new_link = partial(EngineLink, owner=self, heartbeat=heartbeat, hung_after=hung_after)
        self.links: tuple[EngineLink, ...] = ()
        for name, connect in connects.items():
            self._add(name, connect)
        self._runs = False  # from `start` to `aclose`
        self._changes = False  # whether engines come and go
        self._routing: AffinityPolicy = routing
        self._index = PrefixIndex()
        self._draws = draws(random())
        self._reconnect_timeout = reconnect_timeout
        self._next_seq = 0
        self._in_flight: dict[int, InFlightRequest] = {}  # by seq: a request is there once per sequence
        self._failure: str | None = None  # why no engine is expected
        self._quarantine_waits = False  # whether a quarantined request waits for another one's trial
        self._start_decided = asyncio.Event()
        self._reconnect_timer: asyncio.TimerHandle | None = None
        self.on_ready: Callable[[Ready], None] = lambda _: None
        self.ready: Ready | None = None
        self.last_ready: Ready | None = None

    @property
    def health(self) -> Health:
        """The engines' state now: that of the best one."""
        states = [link.health for link in self.links if link.ready is not None]
        if states:
            return min(states, key=lambda health: health.detail)  # one that is awake, if there is one
        if self._failure is not None:
            return Health("failed", self._failure)
        return next((link.health for link in self.links if link.health.status == "loading"), Health("loading"))

    @property
    def busy(self) -> bool:
        """Whether any request is in flight."""
        return bool(self._in_flight)

    @property
    def waiting(self) -> int:
        """The sequences that wait for an engine, whichever is ready first."""
        if self.ready is not None:  # those that still wait then are quarantined
            return 0
        return sum(len(request.seqs) for request in self._unfinished() if request.link is None)

    async def start(self) -> Ready:
        """Connect, however long the first engine takes to load. May be called again after a failure and `aclose`.

        Raises:
            schemas.errors.BackendUnavailable: no engine can load.
        """
        self._failure = None
        self._start_decided.clear()
        self._runs = True
        for link in self.links:
            link.start()
        await self._start_decided.wait()
        if self.ready is None:
            raise BackendUnavailable(f"The engine did not start: {self.health.detail.removesuffix('.')}.")
        return self.ready

    async def aclose(self) -> None:
        """Disconnect, and fail all requests in flight. Idempotent."""
        self._runs = False
        self.ready = None  # before the awaits: no request may be given to a link that is closed
        for link in self.links:
            await link.aclose()
        self._describe()  # another one may have become ready meanwhile
        self._fail_requests("The engine was stopped.")

    async def use(self, connects: Mapping[str, Connect]) -> None:
        """Have links to these engines, by name, and in the end to no others. To be called again and again.

        An engine that is not among them gets no requests while there is another. Its link is closed once it has none
        that are unfinished.
        """
        self._changes = True
        known = {link.name for link in self.links}
        for name in [name for name in connects if name not in known]:
            link = self._add(name, connects[name])
            if self._runs:
                link.start()
        for link in self.links:
            link.leaving = link.name not in connects
        for link in [link for link in self.links if link.leaving]:
            others = any(not other.leaving for other in self._ready_links())  # by now: an await may lie between
            if not link.in_flight and (others or link.ready is None):
                # Before the await: no request may be given to a link that is closed.
                self.links = tuple(each for each in self.links if each is not link)
                self._describe()
                await link.aclose()
                self._index.clear(link.number)  # which is another link's from now on

    def reserve_seqs(self, number: int) -> range:
        """Sequence numbers that are unique on this client."""
        first, self._next_seq = self._next_seq, self._next_seq + number
        return range(first, self._next_seq)

    def submit(
        self, submits: Sequence[Submit], conversation: str | None = None, destinations: Sequence[str] = ()
    ) -> InFlightRequest:
        """Submit sequences under reserved numbers, now or to the next engine. The caller must `release` the request.

        Args:
            submits: a message per sequence.
            conversation: what the requests of a conversation share, if the request is of one.
            destinations: names of the engines that an endpoint picker has chosen, the best one first.

        Raises:
            schemas.errors.BackendUnavailable: there is no engine, and none is expected.
        """
        # A running timer means that another engine is expected: the request is accepted and waits for it. Without a
        # timer nothing would ever end the wait.
        if self.ready is None and self._reconnect_timer is None:
            raise BackendUnavailable("The engine is not ready.", retry_after=1.0)
        request = InFlightRequest(submits, conversation, destinations)
        for seq in request.seqs:
            self._in_flight[seq] = request
        # A new request is never quarantined, so it need not wait for the trial of another one. Without an engine,
        # `Ready` submits it (`_submit_waiting`).
        if self.ready is not None:
            request.submit(self._choose(request))
        return request

    async def manage(self, asked: Manage) -> str | None:
        """Have all engines that are ready change something; why one refuses, or None.

        Raises:
            schemas.errors.BackendUnavailable: there is no engine, or one ended meanwhile.
        """
        links = self._ready_links()
        if not links:
            raise BackendUnavailable("The engine is not ready.", retry_after=1.0)
        refusals = await asyncio.gather(*(link.manage(asked) for link in links))
        return next((why for why in refusals if why is not None), None)

    def order(self, asked: Manage) -> None:
        """Tell all engines to change something, and wait for no answer."""
        for link in self.links:
            link.send(asked)

    def release(self, request: InFlightRequest) -> None:
        """Cancel the request's unfinished sequences, and forget it."""
        # The engine may have sent outputs before it reads the `Cancel`s: outputs of unknown sequences are dropped.
        request.close()
        for seq in request.seqs:
            self._in_flight.pop(seq, None)
        # The released request may have been the one on trial: its reader may leave at any time.
        if self._quarantine_waits:
            self._submit_waiting()

    def fail_start(self, reason: str, engine: str | None = None) -> None:
        """End a `start` in progress: `engine`, or all, will not come up. Afterwards a lost engine is waited for."""
        # Once `start` has returned, an exit is no reason to fail: the process is started again, and the reconnect timer
        # bounds how long requests wait.
        if not self._start_decided.is_set():
            for link in self.links:
                if engine in (None, link.name):
                    link.fail(reason)

    def expect_no_engine(self) -> None:
        """Wait for no engine after the present ones."""
        self._reconnect_timeout = 0.0
        if self._reconnect_timer is not None:
            self._cancel_reconnect_timer()
            self._start_reconnect_timer()

    def engine_stepped(self, link: EngineLink, step: Step) -> None:
        """Deliver the outputs of a step, and note what has changed in the engine's prefix cache."""
        if step.stored or step.removed:
            self._index.remove(link.number, split_keys(step.removed))
            self._index.store(link.number, split_keys(step.stored))
        ended = step.ended + link.clock if step.ended else 0.0
        for output in step.outputs:
            # None: the sequence was released, and its `Cancel` crossed this output. Another link: another engine has
            # taken over meanwhile.
            request = self._in_flight.get(output.seq)
            if request is not None and request.link is link:
                request.deliver(output, ended, link.clock)
        # This step may have ended the trial, or brought it past the token at which engines died.
        if self._quarantine_waits:
            self._submit_waiting()

    def engine_cached(self, link: EngineLink, keys: list[bytes]) -> None:
        """Note what an engine has cached."""
        self._index.clear(link.number)
        self._index.store(link.number, keys)

    def engine_loads(self, link: EngineLink) -> None:  # noqa: ARG002 - any engine that loads is expected
        """Expect an engine that loads."""
        self._failure = None
        self._describe()
        # After a failed wait no timer runs. An engine that loads is a reason to accept requests again (see `submit`); a
        # timer that runs already goes on.
        if self.ready is None and self._start_decided.is_set():
            self._start_reconnect_timer()

    def engine_ready(self, link: EngineLink) -> None:
        """Give an engine that is ready the requests that wait."""
        if (why := link.unlike(self._ready_links())) is not None:
            log.error("engine.unlike", engine=link.name, why=why)
            link.ready = None
            link.fail(f"the engine {link.name} serves another model: {why}")
            return
        self._cancel_reconnect_timer()
        self._failure = None
        self._describe()
        assert self.ready is not None
        self.on_ready(self.ready)
        self._start_decided.set()
        # Also after a sleep, from which the cache comes back empty.
        if self._routing == "prefix" and (len(self.links) > 1 or self._changes) and self.ready.block_size:
            link.send(Watch())
        self._submit_waiting()

    def engine_silent(self, link: EngineLink) -> None:
        """Have others take over what a silent engine runs, if there are others."""
        moved = [request for request in self._unfinished() if request.link is link and not request.was_interrupted]
        if not moved or not any(not other.silent for other in self._ready_links()):
            return
        log.warning("engine.silent", engine=link.name, requests=len(moved))
        for request in moved:
            request.engine_died()
        self._submit_waiting()

    def engine_lost(self, link: EngineLink) -> None:
        """Have others take over what a dead engine ran, or wait for the next engine."""
        lost = [request for request in self._unfinished() if request.link is link]
        log.error("engine.lost", engine=link.name, requests=len(lost))
        self._index.clear(link.number)
        self._describe()
        self._reject_poison(lost)
        if self.ready is None:
            self._start_reconnect_timer()
        else:
            self._submit_waiting()

    def engine_failed(self, link: EngineLink) -> None:
        """Expect no engine if none is left."""
        if all(each.health.status == "failed" for each in self.links):
            self._fail(link.health.detail)

    def _add(self, name: str, connect: Connect) -> EngineLink:
        """A link more, with a number that no other one has: numbers are bits in the index, so they must stay small."""
        taken = {link.number for link in self.links}
        link = self._new_link(next(number for number in count() if number not in taken), name, connect)
        self.links += (link,)
        return link

    def _ready_links(self) -> list[EngineLink]:
        return [link for link in self.links if link.ready is not None]

    def _choose(self, request: InFlightRequest) -> EngineLink:
        """The engine that a request goes to, of those that are ready."""
        lora = request.lora_adapter

        def obstacles(link: EngineLink) -> tuple[bool, ...]:
            assert link.ready is not None
            return lora not in ("", *link.ready.lora_adapters), link.silent, link.leaving, bool(link.ready.asleep)

        ready = self._ready_links()
        least = min(map(obstacles, ready)) if len(ready) > 1 else None
        links = [link for link in ready if least is None or obstacles(link) == least]
        if len(links) == 1:
            return links[0]
        if request.destinations:
            picked = destination([link.name for link in links], request.destinations)
            if picked is not None:
                return links[picked]
        assert self.ready is not None
        keys = request.name_blocks(self.ready.block_size) if self._routing == "prefix" else []
        hits = self._index.hits(keys)
        candidates = [link.candidate(hits.get(link.number, 0)) for link in links]
        return links[choose(self._routing, candidates, len(keys), request.conversation, next(self._draws))]

    def _describe(self) -> None:
        """Describe what the engines that are ready can do together."""
        self.ready = together([link.ready for link in self.links if link.ready is not None])
        self.last_ready = self.ready or self.last_ready

    def _submit_waiting(self) -> None:
        """Submit the requests that no present engine was asked for, of quarantined ones one at a time."""
        unfinished = self._unfinished()
        # At most one quarantined request is on trial: if an engine dies again, it is known which request killed it.
        trial = any(request.link is not None and request.quarantined for request in unfinished)
        self._quarantine_waits = False
        for request in unfinished:
            if request.link is not None or self.ready is None:
                continue
            if request.quarantined and trial:
                self._quarantine_waits = True
            else:
                request.submit(self._choose(request))
                trial = trial or request.quarantined

    def _reject_poison(self, lost: list[InFlightRequest]) -> None:
        """Take a dead engine's requests from it, and reject the poison if exactly one of them can be it."""
        # Order matters: `engine_died` clears `link` and counts the crash, so it must be called once for every request,
        # after those on trial have been collected.
        on_trial = [request for request in lost if request.quarantined]
        candidates = [request for request in lost if request.engine_died()]
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
        # The links go on connecting: an engine that comes up later makes the client ready again.
        self._failure = reason
        self._start_decided.set()
        self._fail_requests("The engine did not start again.")

    def _fail_requests(self, message: str) -> None:
        self._cancel_reconnect_timer()
        for request in self._unfinished():
            request.fail(BackendUnavailable(message))

    def _unfinished(self) -> list[InFlightRequest]:
        """The unfinished requests, each once, in order of submission."""
        # A dict keeps the order of insertion, that of submission; `fromkeys` drops a request's repetitions.
        return [request for request in dict.fromkeys(self._in_flight.values()) if request.unfinished]
