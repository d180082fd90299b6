"""A cell: engines of one model, the gateways that have links to all of them, a placer, and faults."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import ceil
from random import Random
from typing import Any, Literal, NamedTuple

from backends.affinity import AffinityPolicy, PrefixIndex, choose, draws
from backends.autoscaling import Scaling, ScalingState, scale
from backends.native.client.engine_link import EngineLink
from backends.native.cluster.placer import Times
from backends.native.protocol.blocks import split_keys
from benchmarks.fleet.replica import Job, Replica, Shape, Speed
from benchmarks.fleet.traffic import Conversation, Traffic

Policy = AffinityPolicy | Literal["random", "round robin", "power of two"]
FLOORS: tuple[Policy, ...] = ("random", "round robin", "power of two")
HEARTBEAT, _EOF, _SILENT = 1.0, 0.05, 4.0
"""Seconds between pings; from the end of a process to its sockets' (measured); and from a machine's silence until its
requests move (three unanswered pings).
"""
_DELAY = 0.005
"""Seconds until gateways know what a step has cached."""
_NOBODY: Any = None
"""At the other end of a link, which is never started."""


class Plan(NamedTuple):
    """What happens in a run.

    Attributes:
        requests: after which no conversation begins.
        until: seconds after which none begins.
        warmup: seconds of which nothing is counted; nothing is either once no conversation begins any more.
        load: seconds that an engine takes to load.
        machines: that can have an engine each.
        repair: seconds until a machine that died can have one again.
        deaths: (when, how many machines die, whether they fall silent).
        no_head: from when to when nothing is started or stopped.
        deploys: when all engines are replaced, one after the other.
    """

    policy: Policy = "prefix"
    gateways: int = 8
    scaling: Scaling = Scaling(min=32, max=32)
    requests: int = 20_000
    until: float = float("inf")
    warmup: float = 0.0
    load: float = 60.0
    machines: int = 64
    repair: float = 3600.0
    deaths: Sequence[tuple[float, int, bool]] = ()
    no_head: tuple[float, float] = (0.0, 0.0)
    deploys: Sequence[float] = ()


@dataclass(slots=True, eq=False)
class _Engine:
    """An engine as the placer has it, with a link of each gateway. `dead`: it is, but not all know yet."""

    replica: Replica
    links: list[EngineLink]
    ready_at: float
    dead: bool = False
    leaving_since: float | None = None


@dataclass(slots=True)
class Result:
    """What came of a run; times are in seconds."""

    first: array[float] = field(default_factory=lambda: array("d"))
    between: array[float] = field(default_factory=lambda: array("d"))
    pauses: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    asked: int = 0
    ended: int = 0
    refused: int = 0
    moved: int = 0
    unplaced: int = 0
    engine_seconds: float = 0.0
    oracle_seconds: float = 0.0
    most_engines: int = 0
    event_bytes: int = 0
    seconds: float = 0.0
    deaths: int = 0


class Cell:
    """Runs a plan.

    Args:
        plan: what happens.
        traffic: what clients ask.
        speed: of all engines.
        shape: of all engines.
        replica: what an engine is made of.
        seed: of the machines that die, and of policies that draw.
    """

    def __init__(
        self,
        plan: Plan,
        traffic: Traffic,
        speed: Speed = Speed(),  # noqa: B008 - immutable
        shape: Shape = Shape(),  # noqa: B008 - immutable
        *,
        replica: type[Replica] = Replica,
        seed: int = 0,
    ) -> None:
        self.plan, self.traffic, self.speed, self.shape = plan, traffic, speed, shape
        self._replica = replica
        self.result = Result()
        self.now = 0.0
        self._draw = Random(seed)
        starts = Random(seed + 1)
        self._draws = [draws(starts.random()) for _ in range(plan.gateways)]
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._engines: dict[int, _Engine] = {}
        self._index = PrefixIndex()  # of all gateways: each would have the same
        self._news: deque[tuple[float, int, bytes, bytes]] = deque()
        self._target, self._state = 0, ScalingState()
        self._machines = plan.machines
        self._unplaced: list[Job] = []
        self._owners: dict[Job, Conversation] = {}
        self._open = 0
        self._closed = float("inf")  # when conversations have ceased to begin
        self._to_replace: deque[_Engine] = deque()
        self._turn = count()

    def run(self) -> Result:
        """Run until all conversations have ended."""
        self._tick()
        for engine in self._engines.values():
            engine.ready_at = 0.0
        self._at(self.traffic.next_arrival(0.0), self._arrive)
        for when, machines, silent in self.plan.deaths:
            self._at(when, self._die, machines, silent)
        for when in self.plan.deploys:
            self._at(when, lambda: self._to_replace.extend(self._engines.values()))
        while self._events:
            self.now, _, happen, given = heappop(self._events)
            happen(*given)
        self.result.seconds = min(self.now, self._closed)
        return self.result

    def _at(self, when: float, happen: Callable[..., None], *given: Any) -> None:
        heappush(self._events, (when, next(self._order), happen, given))

    def _arrive(self) -> None:
        """A conversation begins."""
        if self.result.asked >= self.plan.requests or self.now >= self.plan.until:
            self._closed = self.now
            return
        self._open += 1
        self._ask(self.traffic.begin())
        self._at(self.traffic.next_arrival(self.now), self._arrive)

    def _ask(self, conversation: Conversation) -> None:
        self.result.asked += 1
        job = self.traffic.turn(conversation, self.now)
        self._owners[job] = conversation
        self._submit(job)

    def _submit(self, job: Job) -> None:
        """A gateway gives a job to an engine."""
        engines = [each for each in self._engines.values() if each.ready_at <= self.now]
        engines = [each for each in engines if each.leaving_since is None] or engines
        if not engines:
            self._unplaced.append(job)
            return
        links = [each.links[job.gateway] for each in engines]
        engine = engines[self._choose(job, links)]
        engine.links[job.gateway].in_flight += 1
        if engine.dead:
            engine.replica.waiting.append(job)  # nobody reads it; it is moved when the engine is missed
        elif engine.replica.submit(self.now, job):
            self._watch(engine)
        else:
            self.result.refused += 1
            self._over(engine, job)

    def _choose(self, job: Job, links: list[EngineLink]) -> int:
        policy = self.plan.policy
        if policy == "random":
            return self._draw.randrange(len(links))
        if policy == "round robin":
            return next(self._turn) % len(links)
        if policy == "power of two":
            pair = [self._draw.randrange(len(links)) for _ in range(2)]
            return min(pair, key=lambda place: links[place].load)
        known = (job.prompt - 1) // self.shape.block
        hits: dict[int, int] = {}
        if policy == "prefix":
            self._read_news()
            hits = self._index.hits(job.keys[:known])
        candidates = [link.candidate(hits.get(link.number, 0)) for link in links]
        return choose(policy, candidates, known, job.conversation, next(self._draws[job.gateway]))

    def _read_news(self) -> None:
        while self._news and self._news[0][0] <= self.now:
            _, number, stored, removed = self._news.popleft()
            self._index.remove(number, split_keys(removed))
            if number in self._engines:
                self._index.store(number, split_keys(stored))

    def _watch(self, engine: _Engine) -> None:
        if (until := engine.replica.until) is not None:
            self._at(until, self._end_step, engine, engine.replica.version)

    def _end_step(self, engine: _Engine, version: int) -> None:
        replica, result = engine.replica, self.result
        if engine.dead or version != replica.version:
            return
        stepped = replica.end_step(self.now)
        for job in stepped.first:
            self._count_first(job)
        for job in stepped.ended:
            self._count_end(job)
            self._over(engine, job)
        stored, removed = replica.pool.take_changes()
        if stored or removed:
            result.event_bytes += (len(stored) + len(removed)) * self.plan.gateways
            if self.plan.policy == "prefix":
                self._news.append((self.now + _DELAY, replica.number, stored, removed))
        self._watch(engine)

    def _count_first(self, job: Job) -> None:
        result = self.result
        if self.plan.warmup <= job.arrived < self._closed:
            result.first.append(self.now - job.arrived)
            result.prompt_tokens += job.prompt
            result.cached_tokens += job.cached

    def _count_end(self, job: Job) -> None:
        result = self.result
        result.ended += 1
        if self.plan.warmup <= self.now < self._closed:
            result.tokens += job.answer
        if job.answer > 1 and not job.moves:
            result.between.append((self.now - job.first) / (job.answer - 1))
        if job.moves and job.received:
            result.pauses.append(job.pause)

    def _over(self, engine: _Engine, job: Job) -> None:
        engine.links[job.gateway].in_flight -= 1
        conversation = self._owners.pop(job)
        if conversation.turns:
            self._at(self.now + self.traffic.pause(conversation), self._ask, conversation)
        else:
            self._open -= 1

    def _tick(self) -> None:
        """Once a second: pings, and what the placer does."""
        engines = [*self._engines.values()]
        for engine in engines:
            if engine.ready_at <= self.now and not engine.dead:
                pong = engine.replica.pong()
                for link in engine.links:
                    link.pong, link.in_flight_then = pong, link.in_flight
        self._account(engines)
        begin, end = self.plan.no_head
        if not begin <= self.now < end:
            self._scale()
        if self._unplaced and any(each.ready_at <= self.now for each in self._engines.values()):
            waiting, self._unplaced = self._unplaced, []
            for job in waiting:
                self._submit(job)
        if self.now < self._closed or self._open:
            self._at(self.now + HEARTBEAT, self._tick)

    def _account(self, engines: list[_Engine]) -> None:
        result, scaling = self.result, self.plan.scaling
        if self.now >= self._closed:
            return
        living = sum(not each.dead for each in engines)
        queue = sum(each.replica.queue for each in engines)
        result.engine_seconds += living * HEARTBEAT
        result.most_engines = max(result.most_engines, living)
        result.oracle_seconds += min(max(scaling.min, ceil(queue / scaling.per_queue)), scaling.max) * HEARTBEAT
        result.unplaced = max(result.unplaced, len(self._unplaced))

    def _scale(self) -> None:
        """As the placer: start engines, or have the idlest ones leave, and stop those that have left."""
        times = Times()
        ready = [each for each in self._engines.values() if each.ready_at <= self.now and not each.dead]
        queue = len(self._unplaced) + sum(each.replica.queue for each in ready)
        self._target, self._state = scale(self.plan.scaling, self._state, queue, self._target, self.now)
        staying = [each for each in self._engines.values() if each.leaving_since is None]
        self._replace(staying)
        excess = len(staying) - self._target
        idlest = sorted(staying, key=lambda each: (each in ready, each.replica.queue))
        for engine in idlest[: max(0, excess)]:
            engine.leaving_since = self.now
        for _ in range(min(-excess, self._machines - len(self._engines))):
            self._start()
        for number, engine in [*self._engines.items()]:
            since = self.now - engine.leaving_since if engine.leaving_since is not None else -1.0
            if since >= times.drain or (since >= times.notice and not engine.replica.jobs() and not engine.dead):
                self._remove(number)

    def _replace(self, staying: list[_Engine]) -> None:
        """Have the next engine of a deploy leave once those that were started for others are ready."""
        while self._to_replace and self._to_replace[0] not in staying:
            self._to_replace.popleft()
        if self._to_replace and all(each.ready_at <= self.now for each in staying):
            engine = self._to_replace.popleft()
            engine.leaving_since = self.now
            staying.remove(engine)

    def _start(self) -> None:
        number = next(number for number in count() if number not in self._engines)
        replica = self._replica(number, self.speed, self.shape)
        name = engine_name(number, self.now)
        links = [
            EngineLink(number, name, _NOBODY, _NOBODY, heartbeat=HEARTBEAT, hung_after=30.0)
            for _ in range(self.plan.gateways)
        ]
        self._engines[number] = _Engine(replica, links, self.now + self.plan.load)

    def _die(self, machines: int, silent: bool) -> None:
        """Machines die, with engines or without, or only so many engines."""
        living = [each for each in self._engines.values() if not each.dead]
        if silent:
            # The first machines are those with engines.
            dying = self._draw.sample(range(self._machines), min(machines, self._machines))
            self._machines -= len(dying)
            self._at(self.now + self.plan.repair, self._repaired, len(dying))
            dead = [living[place] for place in dying if place < len(living)]
        else:
            dead = self._draw.sample(living, min(machines, len(living)))
        for engine in dead:
            engine.dead = True
            self.result.deaths += 1
            engine.replica.halt(self.now)
            for job in engine.replica.jobs():
                if job.received and job.cut < 0:
                    job.cut = self.now
            self._at(self.now + (_SILENT if silent else _EOF), self._missed, engine)

    def _repaired(self, machines: int) -> None:
        self._machines += machines

    def _missed(self, engine: _Engine) -> None:
        """The gateways have others take over what an engine had."""
        if self._engines.get(engine.replica.number) is engine:  # it has not been stopped meanwhile
            self._remove(engine.replica.number)

    def _remove(self, number: int) -> None:
        engine = self._engines.pop(number)
        self._index.clear(number)
        self._news = deque(each for each in self._news if each[1] != number)
        if not engine.dead:
            engine.replica.halt(self.now)
        for job in engine.replica.jobs():
            self.result.moved += 1
            job.moves += 1
            if job.received and job.cut < 0:
                job.cut = self.now
            self._submit(job)


def engine_name(number: int, started: float = 0.0) -> str:
    """The name of an engine. Names decide where a conversation goes first, so real engines are to have the same."""
    return f"engine {number} {started}"
