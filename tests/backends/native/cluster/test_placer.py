"""The placer over nodes of the test: how many engines there are, which go, and what gateways learn of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from backends.autoscaling import Scaling
from backends.native.cluster.placement import ModelSpec, Report, Resources
from backends.native.cluster.placer import EngineGone, Placer, Times
from backends.native.protocol.engine_options import EngineOptions

SPEC = ModelSpec(
    "llama",
    EngineOptions("/models/llama"),
    Resources(),
    "SECRET",
    30.0,
    Scaling(min=1, max=3, per_queue=4.0, up_after=2.0, down_after=10.0),
)
TIMES = Times(tick=0.01, poll=0.02)


@dataclass(slots=True, eq=False)
class Engine:
    """An engine that reports what the test says."""

    made: ModelSpec
    now: Report
    gone: str = ""
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: bool = False

    def __post_init__(self) -> None:
        self.answers.set()

    async def spec(self) -> ModelSpec:
        await self.report()
        return self.made

    async def report(self) -> Report:
        await self.answers.wait()
        if self.gone:
            raise EngineGone(self.gone)
        return self.now

    async def stop(self) -> None:
        self.stopped, self.gone = True, "stopped"

    def has(self, running: int, waiting: int = 0) -> None:
        self.now = replace(self.now, state="ready", running=running, waiting=waiting)


@dataclass(slots=True, eq=False)
class TestNodes:
    """Nodes that have room for any number of engines."""

    __test__ = False
    engines: dict[str, Engine] = field(default_factory=dict)
    head: bool = True

    def start(self, name: str, spec: ModelSpec) -> Engine:
        number = len(self.engines)
        self.engines[name] = Engine(spec, Report(f"tcp://10.0.0.{number}:7000", f"i{number}", "ready"))
        return self.engines[name]

    def running(self) -> Mapping[str, Engine]:
        return {name: engine for name, engine in self.engines.items() if not engine.stopped}

    async def reachable(self) -> bool:
        return self.head

    def __getitem__(self, number: int) -> Engine:
        return [*self.engines.values()][number]


@dataclass(slots=True, eq=False)
class Cluster:
    """A placer whose clock the test turns."""

    nodes: TestNodes = field(default_factory=TestNodes)
    now: float = 1000.0
    placer: Placer = field(init=False)

    def __post_init__(self) -> None:
        self.placer = Placer(self.nodes, TIMES, lambda: self.now)

    async def tick(self, seconds: int = 1, spec: ModelSpec | None = SPEC, gateway: str = "g", waiting: int = 0) -> None:
        """Let seconds pass, with a gateway that asks in each of them."""
        for _ in range(seconds):
            self.now += 1.0
            if spec is not None:
                await self.placer.engines(gateway, spec, b"", waiting)
            await self.placer.tick()
            if spec is not None:
                self.listed = await self.placer.engines(gateway, spec, b"", waiting)

    listed: bytes = b""

    @property
    def addresses(self) -> list[int]:
        """The numbers of the engines that gateways know of."""
        return [int(line.split(b":7000")[0].rpartition(b".")[2]) for line in self.listed.splitlines()]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_gateways_learn_of_the_engines_with_their_incarnations(cluster: Cluster) -> None:
    await cluster.tick(2)
    assert cluster.listed == b"tcp://10.0.0.0:7000 i0\n"
    cluster.placer._times = Times(poll=60.0)  # longer than this test
    waits = asyncio.ensure_future(cluster.placer.engines("other", SPEC, cluster.listed))
    await asyncio.sleep(0.01)
    assert not waits.done(), "nothing has changed"
    cluster.nodes[0].now = replace(cluster.nodes[0].now, incarnation="i9")
    await cluster.placer.tick()
    assert await waits == b"tcp://10.0.0.0:7000 i9\n"
    cluster.placer._times = TIMES
    assert await cluster.placer.engines("other", SPEC, b"tcp://10.0.0.0:7000 i9\n") == b"tcp://10.0.0.0:7000 i9\n", (
        "after a while, too"
    )
    (status,) = cluster.placer.status()
    assert (status.name, status.gateways, status.target) == ("llama", 2, 1)


async def test_a_queue_starts_engines_and_its_end_drains_them(cluster: Cluster) -> None:
    await cluster.tick(2)
    cluster.nodes[0].has(4, 7)
    await cluster.tick(4)
    assert cluster.addresses == [0, 1, 2]
    for number, running in enumerate((1, 2, 1)):
        cluster.nodes[number].has(running)
    await cluster.tick(13)
    assert cluster.addresses == [1], "the least loaded go"
    assert not any(engine.stopped for engine in cluster.nodes.engines.values()), "they have something to do"
    cluster.nodes[0].has(0)
    await cluster.tick(5)
    await asyncio.sleep(0)
    assert [engine.stopped for engine in cluster.nodes.engines.values()] == [True, False, False]
    await cluster.tick(int(TIMES.drain))
    await asyncio.sleep(0)
    assert cluster.nodes[2].stopped, "what it has goes on elsewhere"
    assert len(cluster.nodes.engines) == 3


async def test_what_waits_at_gateways_starts_engines(cluster: Cluster) -> None:
    await cluster.tick(2)
    cluster.nodes[0].now = replace(cluster.nodes[0].now, state="loading")
    await cluster.tick(1, gateway="other", waiting=3)
    await cluster.tick(4, waiting=2)
    assert cluster.placer.status()[0].waiting == 5
    assert len(cluster.nodes.engines) == 2, "five sequences, with four for an engine"
    await cluster.tick(1, waiting=99)
    await cluster.tick(4, waiting=99)
    assert len(cluster.nodes.engines) == 3
    await cluster.tick(int(TIMES.lease) + 1)
    assert cluster.placer.status()[0].waiting == 0, "the other gateway is gone"
    assert len(cluster.addresses) == 1


async def test_an_engine_that_leaves_comes_back_when_it_is_needed_again(cluster: Cluster) -> None:
    spec = replace(SPEC, scaling=replace(SPEC.scaling, min=2, max=2))
    await cluster.tick(2, spec)
    cluster.nodes[0].has(1)
    cluster.nodes[1].has(1)
    await cluster.tick(1, SPEC)
    await cluster.tick(12, SPEC)
    assert len(cluster.addresses) == 1
    await cluster.tick(2, spec)
    assert cluster.addresses == [0, 1]
    assert len(cluster.nodes.engines) == 2


async def test_an_engine_that_ends_is_replaced_later_and_later(cluster: Cluster) -> None:
    await cluster.tick(2)
    starts = []
    with capture_logs() as logs:
        for _ in range(40):
            for engine in cluster.nodes.engines.values():
                engine.gone = "node 10.0.0.9 died"
            before = len(cluster.nodes.engines)
            await cluster.tick()
            if len(cluster.nodes.engines) > before:
                starts.append(cluster.now)
    pauses = [later - sooner for sooner, later in pairwise(starts)]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 8
    assert {entry["event"] for entry in logs} == {"engine.ended"}
    assert cluster.placer.status()[0].last_failure == "node 10.0.0.9 died"


async def test_one_that_has_lasted_is_replaced_at_once(cluster: Cluster) -> None:
    await cluster.tick(2)
    for _ in range(3):
        await cluster.tick(61)
        [*cluster.nodes.engines.values()][-1].gone = "killed"
        await cluster.tick(2)
        assert cluster.addresses == [len(cluster.nodes.engines) - 1]


async def test_one_that_gives_up_is_ended(cluster: Cluster) -> None:
    await cluster.tick(2)
    cluster.nodes[0].now = replace(cluster.nodes[0].now, state="failed", detail="10.0.0.0: no memory")
    await cluster.tick(2)
    await asyncio.sleep(0)
    assert cluster.nodes[0].stopped
    assert cluster.addresses == [1]


async def test_a_silent_engine_stays_listed_and_delays_nobody(cluster: Cluster) -> None:
    spec = replace(SPEC, scaling=replace(SPEC.scaling, min=2, max=2))
    await cluster.tick(2, spec)
    cluster.nodes[0].answers.clear()
    cluster.nodes[1].now = replace(cluster.nodes[1].now, incarnation="new")
    await cluster.tick(2, spec)
    assert cluster.listed == b"tcp://10.0.0.0:7000 i0\ntcp://10.0.0.1:7000 new\n", "the links of gateways decide"
    assert [engine.silent for engine in cluster.placer.status()[0].engines] == [True, False]
    cluster.nodes[0].answers.set()
    await asyncio.sleep(0.01)
    await cluster.tick(1, spec)
    assert not cluster.placer.status()[0].engines[0].silent


async def test_engines_outlive_their_last_gateway_for_a_while(cluster: Cluster) -> None:
    await cluster.tick(2)
    await cluster.tick(int(TIMES.lease), None)
    assert not cluster.nodes[0].stopped
    await cluster.tick(1)
    assert cluster.addresses == [0], "a gateway that is started again finds it"
    await cluster.tick(int(TIMES.lease) + int(TIMES.notice) + 3, None)
    await asyncio.sleep(0)
    assert cluster.nodes[0].stopped
    assert cluster.placer.status() == []


async def test_nothing_is_stopped_or_started_while_the_head_is_away(cluster: Cluster) -> None:
    """Gateways that cannot ask then must not lose their engines."""
    await cluster.tick(2)
    cluster.nodes.head = False
    cluster.nodes[0].has(9, 9)
    await cluster.tick(5 * int(TIMES.lease), None)
    assert not cluster.nodes[0].stopped
    assert len(cluster.nodes.engines) == 1
    cluster.nodes.head = True
    await cluster.tick(int(TIMES.lease) - 1, None)
    await cluster.tick(1)
    assert cluster.addresses == [0, 1, 2], "gateways have had time to ask again"


async def test_gateways_that_differ_get_what_the_greater_one_wants(cluster: Cluster) -> None:
    await cluster.tick(2, replace(SPEC, scaling=replace(SPEC.scaling, min=2)), "a")
    await cluster.tick(2, SPEC, "b")
    assert cluster.addresses == [0, 1]
    assert cluster.placer.status()[0].gateways == 2
    await cluster.tick(2, replace(SPEC, options=EngineOptions("/models/other")), "b")
    assert [status.model for status in cluster.placer.status()] == ["/models/llama", "/models/other"]


async def test_another_placer_takes_over_what_runs(cluster: Cluster) -> None:
    spec = replace(SPEC, scaling=replace(SPEC.scaling, min=2))
    await cluster.tick(2, spec)
    cluster.nodes.start("lost", spec).gone = "node died"
    cluster.placer = Placer(cluster.nodes, TIMES, lambda: cluster.now)
    run = asyncio.ensure_future(cluster.placer.run())
    listed = await cluster.placer.engines("g", spec, b"")
    assert listed == b"tcp://10.0.0.0:7000 i0\ntcp://10.0.0.1:7000 i1\n"
    assert len(cluster.nodes.engines) == 3, "no further one was started"
    async with asyncio.timeout(60):
        while not run.done():  # it ends when nobody needs it
            cluster.now += TIMES.lease
            await asyncio.sleep(0.01)
    await run
    assert all(engine.stopped for engine in cluster.nodes.engines.values())
