"""The engine client over several engines: who gets a request, takeover, silence, poison and unlike engines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from itertools import repeat

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from backends.base import Health
from backends.native.client import engine_client
from backends.native.client.engine_client import EngineClient
from backends.native.client.inflight import InFlightRequest
from backends.native.protocol.blocks import prompt_keys
from backends.native.protocol.messages import Cached, Failed, Loading, Manage, Managed, Step, Submit, Watch
from schemas.errors import BackendFailed, BackendUnavailable
from tests.backends.native.fake_engine import READY, FakeEngine, ask, new_client, until

HEARTBEAT = 0.01


@pytest.fixture(autouse=True)
def first_of_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first of equally loaded engines chosen."""
    monkeypatch.setattr(engine_client, "draws", lambda _: repeat(0.0))


@pytest.fixture
def engines() -> list[FakeEngine]:
    return [FakeEngine(auto=False) for _ in range(3)]


@pytest.fixture
async def client(engines: list[FakeEngine]) -> AsyncIterator[EngineClient]:
    client = new_client(*engines, heartbeat=HEARTBEAT, hung_after=60.0, reconnect_timeout=60.0)
    await client.start()
    await until(lambda: all(link.ready for link in client.links))
    yield client
    await client.aclose()
    assert all(engine.connections == {} for engine in engines)
    assert [link.in_flight for link in client.links] == [0, 0, 0]


def counts(engines: list[FakeEngine]) -> list[int]:
    return [len(engine.running) for engine in engines]


async def ids(request: InFlightRequest) -> list[int]:
    """The ids of the next outputs."""
    return [id for output in await request.outputs() for id in output.ids]


async def rest(request: InFlightRequest, engines: list[FakeEngine]) -> list[int]:
    """Step all engines until the request has ended, and take its ids."""
    while request.unfinished:
        for engine in engines:
            engine.step()
        await asyncio.sleep(0)
    return await ids(request)


async def test_a_request_goes_to_the_engine_with_the_least_to_do(
    engines: list[FakeEngine], client: EngineClient
) -> None:
    requests = [ask(client, 5, 5), ask(client, 5), ask(client, 5), ask(client, 5), ask(client, 5)]
    assert counts(engines) == [2, 2, 2]
    client.release(requests[0])
    requests.append(ask(client, 5))
    assert counts(engines) == [1, 2, 2]
    for request in requests:
        client.release(request)
    assert counts(engines) == [0, 0, 0]


async def test_other_workers_sequences_count(engines: list[FakeEngine], client: EngineClient) -> None:
    """An engine's pong tells how many it has in all."""
    other = new_client(engines[0], heartbeat=HEARTBEAT)
    await other.start()
    theirs = ask(other, 5, 5)
    await until(lambda: client.links[0].load == 2)
    ours = [ask(client, 5) for _ in range(3)]
    assert counts(engines) == [2, 2, 1]
    for request in ours:
        client.release(request)
    other.release(theirs)
    await other.aclose()


async def test_another_engine_takes_over_at_once_and_goes_on_where_the_dead_one_was(
    engines: list[FakeEngine], client: EngineClient
) -> None:
    request = ask(client, 6)
    for _ in range(2):
        engines[0].step()
    assert await ids(request) == [11, 12]
    engines[0].up = False
    engines[0].die()
    await until(lambda: counts(engines) == [0, 1, 0])
    assert client.health == Health("ready")
    assert await rest(request, engines) == [13, 14, 15, 16]
    client.release(request)


async def test_a_start_waits_for_the_first_engine_only() -> None:
    engines = [FakeEngine(greeting=Loading(0.5, "weights")), FakeEngine()]
    client = new_client(*engines)
    await client.start()
    assert client.health == Health("ready")
    await client.aclose()


async def test_a_start_fails_when_no_engine_can_load() -> None:
    engines = [FakeEngine(greeting=Failed("no memory")), FakeEngine(up=False)]
    client = new_client(*engines)
    starting = asyncio.create_task(client.start())
    await until(lambda: client.links[0].health.status == "failed")
    assert not starting.done()
    client.fail_start("exit code 1", "1")
    with pytest.raises(BackendUnavailable, match="exit code 1"):
        await starting
    await client.aclose()


async def test_requests_wait_only_when_no_engine_is_left(engines: list[FakeEngine], client: EngineClient) -> None:
    for engine in engines:
        engine.up = False
        engine.die()
    await until(lambda: client.ready is None)
    assert client.health == Health("loading", "the engine is started again")
    request = ask(client, 1)
    engines[2].up = True
    await until(lambda: counts(engines) == [0, 0, 1])
    assert await rest(request, engines) == [11]
    client.release(request)


async def test_a_silent_engines_requests_are_taken_over_and_its_late_outputs_dropped(
    engines: list[FakeEngine], client: EngineClient
) -> None:
    request = ask(client, 6)
    engines[0].step()
    assert await ids(request) == [11]
    engines[0].silent = True
    await until(lambda: engines[0].running == {} and counts(engines) == [0, 1, 0])
    assert not engines[0].killed
    assert client.links[0].silent
    others = [ask(client, 2) for _ in range(2)]
    assert counts(engines)[0] == 0, "it gets no new requests"
    engines[0].silent = False
    await until(lambda: not client.links[0].silent)
    engines[1].step()
    assert await ids(request) == [12]
    for each in (request, *others):
        client.release(each)


async def test_a_request_is_moved_for_silence_once(engines: list[FakeEngine], client: EngineClient) -> None:
    """It may be what makes engines silent; the next one is killed, as if it were alone, and then the rule for poison
    decides.
    """
    request = ask(client, 6)
    engines[0].silent = True
    await until(lambda: counts(engines) == [0, 1, 0])
    engines[1].silent = True
    await until(lambda: client.links[1].silent)
    assert counts(engines) == [0, 1, 0]
    client.release(request)


@pytest.mark.parametrize("beside", [0, 8])
async def test_a_poison_request_kills_no_more_engines_than_if_there_were_one(
    engines: list[FakeEngine], client: EngineClient, beside: int
) -> None:
    """It crashes every engine that would make its third token."""
    poison = ask(client, 8)
    requests = [ask(client, 8) for _ in range(beside)]
    deaths = 0
    while poison.unfinished or any(request.unfinished for request in requests):
        for engine in engines:
            at = [running for (_, seq), running in engine.running.items() if seq == poison.seqs[0]]
            if at and at[0].generated == 2:
                deaths += 1
                engine.die()
            else:
                engine.step()
        await asyncio.sleep(0)
    assert deaths <= 3
    assert await ids(poison) == [11, 12]
    with pytest.raises(BackendFailed):
        await poison.outputs()
    for request in requests:
        assert await ids(request) == list(range(11, 19))
        client.release(request)
    client.release(poison)
    await until(lambda: all(link.ready for link in client.links))


async def test_an_engine_of_another_model_gets_no_requests(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    engines = [FakeEngine(), FakeEngine(ready=replace(READY, vocab_size=5))]
    client = new_client(engines[0], engines[1])
    with capture_logs() as logs:
        await client.start()
        await until(lambda: client.links[1].health.status == "failed")
    assert client.links[1].health.detail == ("the engine 1 serves another model: its vocab_size is 5, that of 0 is 768")
    assert [entry["event"] for entry in logs] == ["engine.unlike"]
    requests = [ask(client, 5) for _ in range(2)]
    assert engines[1].submitted == []
    for request in requests:
        client.release(request)
    await client.aclose()


async def test_what_engines_can_do_together() -> None:
    """Contexts and LoRA adapters may differ for a while; a request goes where its LoRA adapter is."""
    engines = [FakeEngine(auto=False), FakeEngine(auto=False)]
    engines[0].ready = replace(READY, context_length=100, lora_adapters=("a",))
    engines[1].ready = replace(READY, lora_adapters=("b",), asleep=1)
    client = new_client(*engines)
    await client.start()
    await until(lambda: all(link.ready for link in client.links))
    assert client.ready == replace(READY, context_length=100, lora_adapters=("a", "b"))
    assert client.health == Health("ready")
    for lora, at in (("b", [0, 1]), ("", [1, 1]), ("", [2, 1]), ("a", [3, 1])):
        (seq,) = client.reserve_seqs(1)
        client.submit([Submit(seq, (1,), 5, lora_adapter=lora)])
        assert counts(engines) == at, "others are awake"
    await client.aclose()


async def test_a_change_is_made_by_all_engines(engines: list[FakeEngine], client: EngineClient) -> None:
    changing = asyncio.create_task(client.manage(Manage(0, "sleep", 1)))

    def asked_of(engine: FakeEngine) -> list[Manage]:
        return [message for message in engine.received if isinstance(message, Manage)]

    await until(lambda: all(map(asked_of, engines)))
    for number, engine in enumerate(engines):
        (connection,), (asked,) = engine.connections, asked_of(engine)
        engine.send(connection, Managed(asked.token, "no" if number == 1 else None))
    assert await changing == "no"


def long_prompt(client: EngineClient, *more: int, conversation: str | None = None) -> InFlightRequest:
    (seq,) = client.reserve_seqs(1)
    return client.submit([Submit(seq, (*range(40), *more), 5)], conversation)


async def test_a_request_goes_where_its_prompt_is_cached(engines: list[FakeEngine]) -> None:
    for engine in engines:
        engine.ready = replace(READY, block_size=8)
    client = new_client(*engines)
    await client.start()
    await until(lambda: all(any(isinstance(asked, Watch) for asked in engine.received) for engine in engines))
    keys = prompt_keys(Submit(0, (*range(40), 1), 5), 8)
    engines[1].send(1, Cached(b"".join(keys[:2])))
    engines[2].send(1, Step((), stored=b"".join(keys)))
    requests = [long_prompt(client, number) for number in range(3)]
    assert counts(engines) == [0, 0, 3]
    assert engines[2].submitted[0].block_keys == b"".join(keys)
    engines[2].send(1, Step((), removed=b"".join(keys[1:])))
    requests.append(long_prompt(client))
    assert counts(engines) == [0, 1, 3]
    engines[1].up = False
    engines[1].die()
    await until(lambda: client.links[1].ready is None)
    assert client._index.hits(keys) == {2: 1}, "what a dead engine had cached is gone"
    for request in requests:
        client.release(request)
    await client.aclose()


async def test_an_endpoint_picker_chooses_the_engine(engines: list[FakeEngine], client: EngineClient) -> None:
    chosen = client.links[1]
    for destinations in (["192.0.2.1:80", chosen.name], [chosen.name, client.links[0].name]):
        (seq,) = client.reserve_seqs(1)
        request = client.submit([Submit(seq, (1,), 5)], "a chat", destinations)
        assert request.link is chosen
        client.release(request)


async def test_a_conversation_stays_at_its_engine_where_nothing_is_cached(
    engines: list[FakeEngine], client: EngineClient
) -> None:
    requests = [long_prompt(client, turn, conversation=f"chat {chat}") for chat in range(12) for turn in range(2)]
    for first, second in zip(requests[::2], requests[1::2], strict=True):
        assert first.link is second.link
    assert min(counts(engines)) > 0
    for request in requests:
        client.release(request)


async def test_engines_come_and_go_while_requests_run() -> None:
    """An engine that goes finishes what it has, gets nothing more, and is disconnected then."""
    engines = {name: FakeEngine(auto=False) for name in "abc"}
    client = new_client(heartbeat=HEARTBEAT, hung_after=60.0)
    await client.use({"a": engines["a"].connect})
    await client.start()
    request = ask(client, 6)
    assert counts([*engines.values()]) == [1, 0, 0]
    await client.use({name: engines[name].connect for name in "bc"})
    second = ask(client, 5)
    assert second.link is client.links[0], "no other is ready yet"
    await until(lambda: all(link.ready for link in client.links))
    others = [ask(client, 5) for _ in range(4)]
    assert counts([*engines.values()]) == [2, 2, 2]
    await client.use({name: engines[name].connect for name in "bc"})
    assert [link.name for link in client.links] == ["a", "b", "c"]
    assert await rest(request, [*engines.values()]) == [11, 12, 13, 14, 15, 16]
    for each in [request, second, *others]:
        client.release(each)
    await client.use({"b": engines["b"].connect})
    assert [link.name for link in client.links] == ["b"], "also one that has had nothing"
    await client.use({name: engines[name].connect for name in "bc"})
    assert [(link.name, link.number) for link in client.links] == [("b", 1), ("c", 0)], "numbers are used again"
    await until(lambda: all(link.ready for link in client.links))
    await client.aclose()
    assert all(engine.connections == {} for engine in engines.values())


async def test_an_engine_that_goes_is_used_while_there_is_no_other() -> None:
    engines = [FakeEngine(auto=False), FakeEngine(auto=False, up=False)]
    client = new_client(engines[0], heartbeat=HEARTBEAT, hung_after=60.0, reconnect_timeout=60.0)
    await client.start()
    request = ask(client, 4)
    await client.use({"next": engines[1].connect})
    engines[0].step()
    second = ask(client, 2)
    engines[0].die()
    engines[0].up = False
    await until(lambda: client.ready is None)
    await client.use({"next": engines[1].connect})
    assert [link.name for link in client.links] == ["next"], "it is gone"
    engines[1].up = True
    assert await rest(request, engines) == [11, 12, 13, 14]
    assert await rest(second, engines) == [11, 12]
    client.release(request)
    client.release(second)
    await client.aclose()
