"""The engine client over an engine without a model: routing, crashes, quarantine and timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from backends.base import Health
from backends.native.client.engine_client import EngineClient
from backends.native.client.inflight import InFlightRequest
from backends.native.protocol.messages import Failed, Loading, Output, Step
from schemas.errors import BackendFailed, BackendUnavailable
from schemas.ir import FinishReason
from tests.backends.native.fake_engine import FakeEngine, FakeTransport, ask, new_client, until


class Closing(NamedTuple):
    """Whether a connection has begun to close, and whether it may end that."""

    begun: asyncio.Event
    may_end: asyncio.Event


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine(auto=False)


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[EngineClient]:
    async with connected(engine, reconnect_timeout=60.0) as client:
        yield client


@asynccontextmanager
async def connected(engine: FakeEngine, reconnect_timeout: float) -> AsyncIterator[EngineClient]:
    """A started client; after it is closed, the engine holds nothing for it."""
    client = new_client(engine, heartbeat=0.01, hung_after=0.5, reconnect_timeout=reconnect_timeout)
    await client.start()
    yield client
    await client.aclose()
    assert engine.connections == {}
    assert engine.running == {}


@pytest.fixture
async def hasty(engine: FakeEngine) -> AsyncIterator[EngineClient]:
    async with connected(engine, reconnect_timeout=0.1) as client:
        yield client


async def drain(request: InFlightRequest) -> None:
    """Take outputs until the request fails."""
    while True:
        await request.outputs()


async def test_requests_wait_while_an_engine_loads_again(engine: FakeEngine, client: EngineClient) -> None:
    """As it does when it is woken. If it dies meanwhile, the next engine gets what this one was sent before."""
    before = ask(client, 2)
    engine.send(1, Loading(0.5, "weights"))
    waiting = ask(client, 1)
    assert [submit.seq for submit in engine.submitted] == [0]
    assert client.health == Health("loading", "weights 50%")
    engine.send(1, replace(engine.ready, asleep=0))
    assert [submit.seq for submit in engine.submitted] == [0, 1]
    engine.send(1, Loading(0.5, "weights"))
    engine.die()
    await until(lambda: len(engine.submitted) == 4)
    assert sorted(submit.seq for submit in engine.submitted[2:]) == [0, 1]
    engine.step()
    assert [output.ids for output in [*await before.outputs(), *await waiting.outputs()]] == [(11,), (11,)]


async def test_outputs_are_routed_to_their_requests(engine: FakeEngine, client: EngineClient) -> None:
    first, second = ask(client, 2, 3), ask(client, 1)
    engine.step()
    assert [(o.seq, o.ids) for o in await first.outputs()] == [(0, (11,)), (1, (21,))]
    assert [(o.seq, o.ids, o.reason) for o in await second.outputs()] == [(2, (11,), FinishReason.LENGTH)]
    assert not second.unfinished
    engine.step()
    engine.step()
    late = await first.outputs()
    assert [(o.seq, o.ids) for o in late] == [(0, (12,)), (1, (22,)), (1, (23,))], "a slow reader gets one batch"
    for request in (first, second):
        client.release(request)
    assert engine.cancelled == []
    assert not client.busy


async def test_outputs_waits_for_the_first_output(engine: FakeEngine, client: EngineClient) -> None:
    request = ask(client, 1)
    waiting = asyncio.create_task(request.outputs())
    await asyncio.sleep(0)
    assert not waiting.done()
    engine.step()
    assert len(await waiting) == 1
    client.release(request)


async def test_releasing_a_request_cancels_its_unfinished_sequences(engine: FakeEngine, client: EngineClient) -> None:
    request = ask(client, 1, 5, 5)
    request.cancel(1)
    request.cancel(1)
    engine.step()
    client.release(request)
    client.release(request)
    assert sorted(engine.cancelled) == [1, 2]
    assert engine.running == {}
    engine.send(1, Step((Output(2, (9,)),)))  # it crossed the Cancel
    assert not client.busy


async def test_requests_without_taken_outputs_are_submitted_to_the_next_engine(
    engine: FakeEngine, client: EngineClient
) -> None:
    unread, waiting = ask(client, 2), ask(client, 2)
    engine.step()
    engine.running.clear()
    engine.die()
    assert not client.ready or not engine.connections
    await until(lambda: len(engine.running) == 2)
    for _ in range(2):
        engine.step()
    for request in (unread, waiting):
        assert [output.ids for output in await request.outputs()] == [(11,), (12,)]
        client.release(request)
    assert [replace(submit, again=True, received=(11,)) for submit in engine.submitted[:2]] == engine.submitted[2:]


async def test_a_request_in_progress_continues_in_the_next_engine(engine: FakeEngine, client: EngineClient) -> None:
    begun, ended = ask(client, 5, 1), ask(client, 1)
    for _ in range(2):
        engine.step()
    assert [output.ids for output in await begun.outputs()] == [(11,), (21,), (12,)]
    engine.die()
    assert len(await ended.outputs()) == 1, "a finished request is not affected"
    await until(lambda: len(engine.running) == 1)
    engine.burst = 2
    for _ in range(2):
        engine.step()
    assert [output.ids for output in await begun.outputs()] == [(13, 14), (15,)]
    assert not begun.unfinished
    for request in (begun, ended):
        client.release(request)


async def test_a_lone_request_is_rejected_after_two_crashes_at_its_first_token(
    engine: FakeEngine, client: EngineClient
) -> None:
    request = ask(client, 2)
    for _ in range(2):
        await until(lambda: len(engine.running) == 1)
        engine.die()
        await until(lambda: client.ready is not None or not request.unfinished)
    with pytest.raises(BackendFailed):
        await request.outputs()
    assert len(engine.submitted) == 2
    client.release(request)


async def die_and_return(engine: FakeEngine, client: EngineClient) -> None:
    asked = len(engine.submitted)
    engine.die()
    await until(lambda: client.ready is None)
    await until(lambda: client.ready is not None and len(engine.submitted) > asked)


async def test_a_request_that_gains_tokens_survives_three_crashes(engine: FakeEngine, client: EngineClient) -> None:
    request = ask(client, 6)
    for further in (1, 2, 1):
        for _ in range(further):
            engine.step()
        await die_and_return(engine, client)
    for _ in range(2):
        engine.step()
    ids = [id for output in await request.outputs() for id in output.ids]
    assert ids == list(range(11, 17))
    assert not request.unfinished
    client.release(request)


async def test_quarantined_requests_are_retried_one_at_a_time(engine: FakeEngine, client: EngineClient) -> None:
    requests = [ask(client, 2) for _ in range(3)]
    for _ in range(2):
        await die_and_return(engine, client)
    assert [submit.seq for submit in engine.submitted[6:]] == [0]
    later = ask(client, 1)
    assert len(engine.running) == 2, "other requests do not wait for the trial"
    engine.step()
    assert [submit.seq for submit in engine.submitted[8:]] == [1], "the first got past its token"
    await die_and_return(engine, client)
    assert [submit.seq for submit in engine.submitted[9:]] == [0, 2]
    with pytest.raises(BackendFailed) as raised:
        await requests[1].outputs()
    assert raised.value.code == "engine_dead"
    client.release(requests[1])
    for _ in range(2):
        engine.step()
    for request in (requests[0], requests[2], later):
        await request.outputs()
        assert not request.unfinished
        client.release(request)


async def test_what_dies_on_trial_is_refused_whoever_else_looks_suspicious(
    engine: FakeEngine, client: EngineClient
) -> None:
    first, second = ask(client, 2), ask(client, 2)
    await die_and_return(engine, client)
    third = ask(client, 2)
    await die_and_return(engine, client)
    assert {seq for _, seq in engine.running} == {0, 2}, "the first is tried, the second waits"
    await die_and_return(engine, client)
    with pytest.raises(BackendFailed):
        await first.outputs()
    assert {seq for _, seq in engine.running} == {1}, "now the third is quarantined, too"
    engine.step()
    assert {seq for _, seq in engine.running} == {1, 2}
    for request in (first, second, third):
        client.release(request)


async def test_releasing_the_request_on_trial_submits_the_next_quarantined_one(
    engine: FakeEngine, client: EngineClient
) -> None:
    first, second = ask(client, 2), ask(client, 2)
    for _ in range(2):
        await die_and_return(engine, client)
    assert [submit.seq for submit in engine.submitted[4:]] == [0]
    client.release(first)
    assert [submit.seq for submit in engine.submitted[4:]] == [0, 1]
    client.release(second)


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1, 5])
async def test_a_poison_request_is_rejected_and_no_other_request_fails(
    engine: FakeEngine, client: EngineClient, place: int
) -> None:
    """Of thirty requests that advance in step, the twelfth crashes the engine at its token number `place`."""
    requests = [ask(client, 8) for _ in range(30)]
    poison = requests[11].seqs[0]
    deaths = 0
    while any(request.unfinished for request in requests):
        running = {seq: sequence for (_, seq), sequence in engine.running.items()}
        if poison in running and running[poison].generated == place:
            deaths += 1
            engine.die()
            await until(lambda: client.ready is None)
            await until(lambda: client.ready is not None)
        else:
            engine.step()
            await asyncio.sleep(0)
    assert deaths <= 3
    for number, request in enumerate(requests):
        if number == 11:
            with pytest.raises(BackendFailed):
                await drain(request)
        else:
            assert [id for output in await request.outputs() for id in output.ids] == list(range(11, 19))
        client.release(request)


async def test_a_request_is_rejected_at_the_fifth_crash(engine: FakeEngine, client: EngineClient) -> None:
    request = ask(client, 50)
    for further in (1, 2, 3, 4):
        for _ in range(further):
            engine.step()
        await die_and_return(engine, client)
    for _ in range(5):
        engine.step()
    engine.die()
    await until(lambda: client.ready is not None and not engine.running)
    with pytest.raises(BackendFailed):
        await drain(request)
    client.release(request)


async def test_requests_wait_while_there_is_no_engine(engine: FakeEngine, client: EngineClient) -> None:
    engine.up = False
    engine.die()
    await until(lambda: client.ready is None)
    assert client.health.status == "loading"
    request = ask(client, 1)
    engine.up = True
    await until(lambda: client.ready is not None)
    assert client.health == Health("ready")
    engine.step()
    assert [output.ids for output in await request.outputs()] == [(11,)]
    client.release(request)


async def test_requests_fail_after_the_reconnect_timeout(engine: FakeEngine, hasty: EngineClient) -> None:
    client = hasty
    engine.up = False
    begun = ask(client, 5)
    engine.die()
    await until(lambda: client.ready is None)
    waiting = ask(client, 1)
    for request in (begun, waiting):
        with pytest.raises(BackendUnavailable):
            await request.outputs()
        client.release(request)
    assert client.health == Health("failed", "the engine did not start again")
    with pytest.raises(BackendUnavailable) as raised:
        ask(client, 1)
    assert raised.value.retry_after == 1.0
    engine.up = True
    await until(lambda: client.health == Health("ready"))


@pytest.mark.parametrize("before", [True, False])
async def test_requests_fail_at_once_if_no_engine_is_expected(
    engine: FakeEngine, client: EngineClient, *, before: bool
) -> None:
    request = ask(client, 5)
    if before:
        client.expect_no_engine()
    engine.up = False
    engine.die()
    await until(lambda: client.ready is None)
    if not before:
        client.expect_no_engine()
    with pytest.raises(BackendUnavailable):
        await request.outputs()
    client.release(request)


async def test_requests_wait_again_once_the_next_engine_loads(engine: FakeEngine, hasty: EngineClient) -> None:
    client = hasty
    engine.up = False
    engine.die()
    await until(lambda: client.health.status == "failed")
    engine.up, engine.greeting = True, Loading(0.5, "weights")
    await until(lambda: client.health.status == "loading")
    request = ask(client, 1)
    assert engine.submitted == []
    (connection,) = engine.connections
    engine.send(connection, engine.ready)
    engine.step()
    assert [output.ids for output in await request.outputs()] == [(11,)]
    client.release(request)


async def test_an_engine_that_hangs_while_loading_is_killed(engine: FakeEngine) -> None:
    engine.greeting = Loading(0.25, "weights")
    client = new_client(engine, heartbeat=0.001, hung_after=0.01)
    starting = asyncio.create_task(client.start())
    await until(lambda: engine.killed)
    starting.cancel()
    await client.aclose()


async def test_waiting_requests_fail_if_the_next_engine_cannot_load(engine: FakeEngine, client: EngineClient) -> None:
    request = ask(client, 2)
    engine.greeting = Failed("no memory")
    engine.die()
    with pytest.raises(BackendUnavailable):
        await request.outputs()
    assert client.health == Health("failed", "no memory")
    client.release(request)


async def test_a_loading_engine_may_be_silent_for_longer(engine: FakeEngine) -> None:
    engine.greeting = Loading(0.25, "weights")
    client = new_client(engine, heartbeat=0.01, hung_after=0.02)
    starting = asyncio.create_task(client.start())
    await until(lambda: bool(engine.connections))
    assert client.health == Health("loading", "weights 25%")
    await asyncio.sleep(0.05)  # silent for longer than a running engine is allowed to be
    assert len(engine.connections) == 1
    engine.send(1, engine.ready)
    assert await starting == engine.ready
    await client.aclose()


async def test_start_fails_if_the_engine_cannot_load(engine: FakeEngine) -> None:
    engine.greeting = Failed("no such model")
    client = new_client(engine)
    with pytest.raises(BackendUnavailable, match="no such model"):
        await client.start()
    await client.aclose()
    await client.aclose()


async def test_fail_start_ends_only_a_start_in_progress(engine: FakeEngine, client: EngineClient) -> None:
    engine.up = False
    waiting = new_client(engine)
    starting = asyncio.create_task(waiting.start())
    await asyncio.sleep(0)
    waiting.fail_start("exit code 1")
    with pytest.raises(BackendUnavailable, match="exit code 1"):
        await starting
    await waiting.aclose()
    client.fail_start("exit code 1")
    assert client.health == Health("ready"), "it has no effect after a successful start"


@pytest.mark.slow
async def test_a_silent_engine_is_killed_and_its_requests_fail() -> None:
    engine = FakeEngine(auto=False)
    client = new_client(engine, heartbeat=0.005, hung_after=0.2)
    await client.start()
    await until(lambda: client.links[0].pong is not None)
    request = ask(client, 5)
    engine.step()
    await request.outputs()
    engine.silent = True
    with pytest.raises(BackendFailed):
        await request.outputs()
    assert engine.killed
    client.release(request)
    await client.aclose()


async def test_closing_fails_waiting_requests(engine: FakeEngine, client: EngineClient) -> None:
    request = ask(client, 5)
    waiting = asyncio.create_task(request.outputs())
    await asyncio.sleep(0)
    await client.aclose()
    with pytest.raises(BackendUnavailable):
        await waiting
    client.release(request)


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> Closing:
    """Has connections take their time to close, as that to a thread does, which first finishes its step."""
    waits, aclose = Closing(asyncio.Event(), asyncio.Event()), FakeTransport.aclose

    async def slowly(transport: FakeTransport) -> None:
        waits.begun.set()
        await waits.may_end.wait()
        await aclose(transport)

    monkeypatch.setattr(FakeTransport, "aclose", slowly)
    return waits


async def test_a_lost_engine_is_asked_nothing_while_its_connection_closes(
    engine: FakeEngine, client: EngineClient, closing: Closing
) -> None:
    on_message, on_lost = engine.connections[1]
    on_lost()
    await closing.begun.wait()
    assert client.ready is None
    request = ask(client, 1)
    on_message(engine.ready)  # was under way
    assert client.ready is None
    closing.may_end.set()
    await until(lambda: len(engine.submitted) == 1)
    engine.step()
    assert [output.ids for output in await request.outputs()] == [(11,)]
    client.release(request)


async def test_a_client_that_is_being_closed_takes_no_request(client: EngineClient, closing: Closing) -> None:
    ending = asyncio.create_task(client.aclose())
    await closing.begun.wait()
    with pytest.raises(BackendUnavailable):
        ask(client, 1)
    client._describe()  # as when another engine becomes ready meanwhile
    closing.may_end.set()
    await ending
    assert client.ready is None
