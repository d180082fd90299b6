from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from backends.base import Health
from backends.native.client import channels
from backends.native.client.channels import over_socket
from backends.native.client.engine_client import EngineLink
from backends.native.client.inflight import Exchange
from backends.native.protocol.messages import Failed, Loading, Output, Step, Submit
from schemas.errors import BackendFailed, BackendUnavailable
from schemas.ir import FinishReason
from tests.backends.native.fake_engine import FakeEngine


async def until(true: Callable[[], bool]) -> None:
    """Let the loop turn until it is true; gives up after many turns."""
    for _ in range(20_000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not become true")


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine(auto=False)


@pytest.fixture
async def link(engine: FakeEngine) -> AsyncIterator[EngineLink]:
    async with linked(engine, patience=60.0) as link:
        yield link


@asynccontextmanager
async def linked(engine: FakeEngine, patience: float) -> AsyncIterator[EngineLink]:
    """A way to the engine that is closed in the end, and then holds nothing of it."""
    link = EngineLink(engine.connect, heartbeat=0.01, hung_after=0.5, patience=patience)
    await link.start()
    yield link
    await link.aclose()
    assert engine.connections == {}
    assert engine.running == {}


@pytest.fixture
async def impatient(engine: FakeEngine) -> AsyncIterator[EngineLink]:
    async with linked(engine, patience=0.1) as link:
        yield link


async def drain(exchange: Exchange) -> None:
    """Take what comes until it fails."""
    while True:
        await exchange.outputs()


def ask(link: EngineLink, *lengths: int) -> Exchange:
    seqs = link.reserve(len(lengths))
    return link.submit(
        [Submit(seq, (10 * n,), length) for n, (seq, length) in enumerate(zip(seqs, lengths, strict=True), 1)]
    )


async def test_outputs_come_to_whom_they_belong(engine: FakeEngine, link: EngineLink) -> None:
    first, second = ask(link, 2, 3), ask(link, 1)
    engine.step()
    assert [(o.seq, o.ids) for o in await first.outputs()] == [(0, (11,)), (1, (21,))]
    assert [(o.seq, o.ids, o.reason) for o in await second.outputs()] == [(2, (11,), FinishReason.LENGTH)]
    assert not second.unfinished
    engine.step()
    engine.step()
    late = await first.outputs()
    assert [(o.seq, o.ids) for o in late] == [(0, (12,)), (1, (22,)), (1, (23,))], "a slow taker gets one batch"
    for exchange in (first, second):
        link.release(exchange)
    assert engine.cancelled == []
    assert not link.busy


async def test_waiting_ends_when_something_comes(engine: FakeEngine, link: EngineLink) -> None:
    exchange = ask(link, 1)
    waiting = asyncio.create_task(exchange.outputs())
    await asyncio.sleep(0)
    assert not waiting.done()
    engine.step()
    assert len(await waiting) == 1
    link.release(exchange)


async def test_releasing_cancels_what_is_unfinished(engine: FakeEngine, link: EngineLink) -> None:
    exchange = ask(link, 1, 5, 5)
    exchange.cancel(1)
    exchange.cancel(1)
    engine.step()
    link.release(exchange)
    link.release(exchange)
    assert sorted(engine.cancelled) == [1, 2]
    assert engine.running == {}
    engine.tell(1, Step((Output(2, (9,)),)))  # crossed the Cancel on its way
    assert not link.busy


async def test_what_nobody_took_is_asked_again_of_the_next_engine(engine: FakeEngine, link: EngineLink) -> None:
    untold, waiting = ask(link, 2), ask(link, 2)
    engine.step()
    engine.running.clear()
    engine.die()
    assert not link.ready or not engine.connections
    await until(lambda: len(engine.running) == 2)
    for _ in range(2):
        engine.step()
    for exchange in (untold, waiting):
        assert [output.ids for output in await exchange.outputs()] == [(11,), (12,)]
        link.release(exchange)
    assert [replace(submit, again=True) for submit in engine.submitted[:2]] == engine.submitted[2:]


async def test_what_was_begun_goes_on_in_the_next_engine(engine: FakeEngine, link: EngineLink) -> None:
    begun, ended = ask(link, 5, 1), ask(link, 1)
    for _ in range(2):
        engine.step()
    assert [output.ids for output in await begun.outputs()] == [(11,), (21,), (12,)]
    engine.die()
    assert len(await ended.outputs()) == 1, "a complete answer is complete"
    await until(lambda: len(engine.running) == 1)
    engine.burst = 3
    for _ in range(2):
        engine.step()
    assert [output.ids for output in await begun.outputs()] == [(13,), (14, 15)]
    assert not begun.unfinished
    for exchange in (begun, ended):
        link.release(exchange)


async def test_what_goes_on_otherwise_in_the_next_engine_is_an_error(engine: FakeEngine, link: EngineLink) -> None:
    begun = ask(link, 5)
    engine.step()
    await begun.outputs()
    engine.die()
    engine.rule = lambda submit: iter(range(70, 90))
    await until(lambda: len(engine.running) == 1)
    engine.step()
    with pytest.raises(BackendFailed) as raised:
        await begun.outputs()
    assert raised.value.code == "engine_dead"
    link.release(begun)


async def test_nothing_is_asked_a_third_time(engine: FakeEngine, link: EngineLink) -> None:
    exchange = ask(link, 2)
    for _ in range(2):
        await until(lambda: len(engine.running) == 1)
        engine.die()
        await until(lambda: link.ready is not None or not exchange.unfinished)
    with pytest.raises(BackendFailed):
        await exchange.outputs()
    assert len(engine.submitted) == 2
    link.release(exchange)


async def die_and_return(engine: FakeEngine, link: EngineLink) -> None:
    asked = len(engine.submitted)
    engine.die()
    await until(lambda: link.ready is None)
    await until(lambda: link.ready is not None and len(engine.submitted) > asked)


async def test_what_gets_on_survives_any_two_engines(engine: FakeEngine, link: EngineLink) -> None:
    exchange = ask(link, 6)
    for further in (1, 2, 3):
        for _ in range(further):
            engine.step()
        await die_and_return(engine, link)
    for _ in range(6):
        engine.step()
    ids = [id for output in await exchange.outputs() for id in output.ids]
    assert ids == list(range(11, 17))
    assert not exchange.unfinished
    link.release(exchange)


async def test_what_was_behind_its_place_did_not_kill_the_engine(engine: FakeEngine, link: EngineLink) -> None:
    exchange = ask(link, 6)
    for steps in (3, 2, 2):
        for _ in range(steps):
            engine.step()
        await die_and_return(engine, link)
    assert not exchange.suspect
    link.release(exchange)


async def test_of_suspects_one_at_a_time_is_tried(engine: FakeEngine, link: EngineLink) -> None:
    exchanges = [ask(link, 2) for _ in range(3)]
    for _ in range(2):
        await die_and_return(engine, link)
    assert [submit.seq for submit in engine.submitted[6:]] == [0]
    later = ask(link, 1)
    assert len(engine.running) == 2, "nobody else waits for the trial"
    engine.step()
    assert [submit.seq for submit in engine.submitted[8:]] == [1], "the first is harmless"
    await die_and_return(engine, link)
    assert [submit.seq for submit in engine.submitted[9:]] == [0, 2]
    with pytest.raises(BackendFailed) as raised:
        await exchanges[1].outputs()
    assert raised.value.code == "engine_dead"
    link.release(exchanges[1])
    for _ in range(2):
        engine.step()
    for exchange in (exchanges[0], exchanges[2], later):
        await exchange.outputs()
        assert not exchange.unfinished
        link.release(exchange)


async def test_what_dies_on_trial_is_refused_whoever_else_looks_suspicious(
    engine: FakeEngine, link: EngineLink
) -> None:
    first, second = ask(link, 2), ask(link, 2)
    await die_and_return(engine, link)
    third = ask(link, 2)
    await die_and_return(engine, link)
    assert {seq for _, seq in engine.running} == {0, 2}, "the first is tried, the second waits"
    await die_and_return(engine, link)
    with pytest.raises(BackendFailed):
        await first.outputs()
    assert {seq for _, seq in engine.running} == {1}, "now the third is a suspect, too"
    engine.step()
    assert {seq for _, seq in engine.running} == {1, 2}
    for exchange in (first, second, third):
        link.release(exchange)


async def test_leaving_a_trial_makes_room_for_the_next(engine: FakeEngine, link: EngineLink) -> None:
    first, second = ask(link, 2), ask(link, 2)
    for _ in range(2):
        await die_and_return(engine, link)
    assert [submit.seq for submit in engine.submitted[4:]] == [0]
    link.release(first)
    assert [submit.seq for submit in engine.submitted[4:]] == [0, 1]
    link.release(second)


@pytest.mark.parametrize("place", [0, 1, 5])
async def test_one_that_kills_engines_is_refused_and_nobody_beside_it(
    engine: FakeEngine, link: EngineLink, place: int
) -> None:
    """Of thirty that are answered in step, so that all look alike, the twelfth kills the engine at that place."""
    exchanges = [ask(link, 8) for _ in range(30)]
    poison = exchanges[11].submits[0].seq
    deaths = 0
    while any(exchange.unfinished for exchange in exchanges):
        running = {seq: sequence for (_, seq), sequence in engine.running.items()}
        if poison in running and running[poison].generated == place:
            deaths += 1
            engine.die()
            await until(lambda: link.ready is None)
            await until(lambda: link.ready is not None)
        else:
            engine.step()
            await asyncio.sleep(0)
    assert deaths <= 3
    for number, exchange in enumerate(exchanges):
        if number == 11:
            with pytest.raises(BackendFailed):
                await drain(exchange)
        else:
            assert [id for output in await exchange.outputs() for id in output.ids] == list(range(11, 19))
        link.release(exchange)


async def test_no_request_sees_five_engines_die(engine: FakeEngine, link: EngineLink) -> None:
    exchange = ask(link, 50)
    for further in (1, 2, 3, 4):
        for _ in range(further):
            engine.step()
        await die_and_return(engine, link)
    for _ in range(5):
        engine.step()
    engine.die()
    await until(lambda: link.ready is not None and not engine.running)
    with pytest.raises(BackendFailed):
        await drain(exchange)
    link.release(exchange)


async def test_between_engines_requests_wait(engine: FakeEngine, link: EngineLink) -> None:
    engine.up = False
    engine.die()
    await until(lambda: link.ready is None)
    assert link.health.status == "loading"
    exchange = ask(link, 1)
    engine.up = True
    await until(lambda: link.ready is not None)
    assert link.health == Health("ready")
    engine.step()
    assert [output.ids for output in await exchange.outputs()] == [(11,)]
    link.release(exchange)


async def test_they_do_not_wait_forever(engine: FakeEngine, impatient: EngineLink) -> None:
    link = impatient
    engine.up = False
    begun = ask(link, 5)
    engine.die()
    await until(lambda: link.ready is None)
    waiting = ask(link, 1)
    for exchange in (begun, waiting):
        with pytest.raises(BackendUnavailable):
            await exchange.outputs()
        link.release(exchange)
    assert link.health == Health("failed", "the engine did not start again")
    with pytest.raises(BackendUnavailable) as raised:
        ask(link, 1)
    assert raised.value.retry_after == 1.0
    engine.up = True
    await until(lambda: link.health == Health("ready"))


async def test_they_wait_again_for_one_that_says_it_loads(engine: FakeEngine, impatient: EngineLink) -> None:
    link = impatient
    engine.up = False
    engine.die()
    await until(lambda: link.health.status == "failed")
    engine.up, engine.greeting = True, Loading(0.5, "weights")
    await until(lambda: link.health.status == "loading")
    exchange = ask(link, 1)
    assert engine.submitted == []
    (connection,) = engine.connections
    engine.tell(connection, engine.ready)
    engine.step()
    assert [output.ids for output in await exchange.outputs()] == [(11,)]
    link.release(exchange)


async def test_an_engine_that_hangs_while_it_loads_is_killed(engine: FakeEngine) -> None:
    engine.greeting = Loading(0.25, "weights")
    link = EngineLink(engine.connect, heartbeat=0.001, hung_after=0.01)
    starting = asyncio.create_task(link.start())
    await until(lambda: engine.killed)
    starting.cancel()
    await link.aclose()


async def test_what_waits_for_an_engine_that_does_not_come_is_told(engine: FakeEngine, link: EngineLink) -> None:
    exchange = ask(link, 2)
    engine.greeting = Failed("no memory")
    engine.die()
    with pytest.raises(BackendUnavailable):
        await exchange.outputs()
    assert link.health == Health("failed", "no memory")
    link.release(exchange)


async def test_loading_is_not_failing(engine: FakeEngine) -> None:
    engine.greeting = Loading(0.25, "weights")
    link = EngineLink(engine.connect, heartbeat=0.01, hung_after=0.02)
    starting = asyncio.create_task(link.start())
    await until(lambda: bool(engine.connections))
    assert link.health == Health("loading", "weights 25%")
    await asyncio.sleep(0.05)  # silent for longer than a running engine may be
    assert len(engine.connections) == 1
    engine.tell(1, engine.ready)
    assert await starting == engine.ready
    await link.aclose()


async def test_an_engine_that_cannot_load(engine: FakeEngine) -> None:
    engine.greeting = Failed("no such model")
    link = EngineLink(engine.connect)
    with pytest.raises(BackendUnavailable, match="no such model"):
        await link.start()
    await link.aclose()
    await link.aclose()


async def test_an_engine_that_never_came_up_is_abandoned(engine: FakeEngine, link: EngineLink) -> None:
    engine.up = False
    waiting = EngineLink(engine.connect)
    starting = asyncio.create_task(waiting.start())
    await asyncio.sleep(0)
    waiting.abandon("exit code 1")
    with pytest.raises(BackendUnavailable, match="exit code 1"):
        await starting
    await waiting.aclose()
    link.abandon("exit code 1")
    assert link.health == Health("ready"), "one that did comes again"


async def test_a_silent_engine_is_given_up() -> None:
    engine = FakeEngine(auto=False)
    link = EngineLink(engine.connect, heartbeat=0.005, hung_after=0.2)
    await link.start()
    await until(lambda: link.pong is not None)
    exchange = ask(link, 5)
    engine.step()
    await exchange.outputs()
    engine.silent = True
    with pytest.raises(BackendFailed):
        await exchange.outputs()
    assert engine.killed
    link.release(exchange)
    await link.aclose()


async def test_closing_tells_those_who_wait(engine: FakeEngine, link: EngineLink) -> None:
    exchange = ask(link, 5)
    waiting = asyncio.create_task(exchange.outputs())
    await asyncio.sleep(0)
    await link.aclose()
    with pytest.raises(BackendUnavailable):
        await waiting
    link.release(exchange)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_over_a_socket(run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path) -> None:
    run(over_a_socket(str(tmp_path / "socket")))


async def test_an_engine_in_another_container_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(channels.os, "kill", lambda *of: killed.append(of))
    engine, path = FakeEngine(), str(tmp_path / "socket")
    async with engine.serve(path):
        channel = await over_socket(path)(lambda _: None, lambda: None)
        await until(lambda: bool(engine.connections))
        for pid in (0, 1234567):  # the kernel says 0 of a process that we cannot see
            monkeypatch.setattr(channels, "_peer", lambda _, pid=pid: pid)
            channel.kill()
        assert killed == [(1234567, signal.SIGKILL)]
        await channel.aclose()
        await until(lambda: not engine.connections)


async def over_a_socket(path: str) -> None:
    engine = FakeEngine()
    link = EngineLink(over_socket(path), heartbeat=0.01)
    starting = asyncio.create_task(link.start())
    await asyncio.sleep(0.01)
    assert link.health == Health("loading"), "it waits for an engine that is not there yet"
    async with engine.serve(path):
        await starting
        exchange = ask(link, 300)
        ids: list[int] = []
        while exchange.unfinished or len(ids) < 300:
            ids += [id for output in await exchange.outputs() for id in output.ids]
        assert ids == list(range(11, 311))
        link.release(exchange)
        begun = ask(link, 10**6)
        ids = [id for output in await begun.outputs() for id in output.ids]
        engine.die()
        while len(ids) < 1000:
            ids += [id for output in await begun.outputs() for id in output.ids]
        assert ids == list(range(11, 11 + len(ids))), "it went on in the next engine"
        link.release(begun)
        await until(lambda: link.ready is not None)
        long = ask(link, 10**6)
        await long.outputs()
        link.release(long)
        await until(lambda: not engine.running)
        await link.aclose()
        await until(lambda: not engine.connections)
