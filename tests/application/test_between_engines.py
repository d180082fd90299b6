"""Requests that arrive while an engine restarts wait for it, unless another served entity can answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import islice

import httpx
import pytest

from backends.native.backend import NativeBackend
from backends.native.protocol.messages import Submit
from gateway import service
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
from gateway.routing import backend_health
from tests.backends.native.fake_engine import FakeEngine
from tests.gateway.serving import running

pytestmark = pytest.mark.slow

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3}


def rule(submit: Submit) -> Iterator[int]:
    return islice(iter(range(300, 400)), submit.max_new_tokens)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(rule=rule)


@asynccontextmanager
async def serving(engine: FakeEngine, other: FakeEngine | None = None) -> AsyncIterator[httpx.AsyncClient]:
    engines = {"local": engine} if other is None else {"local": engine, "other": other}
    backends = {name: NativeBackend(name, {"heartbeat": 0.01}, connect=each.connect) for name, each in engines.items()}
    entities = tuple(
        ServedEntity(name=name, backend=name, traffic_percentage=100 if name == "local" else 0) for name in backends
    )
    sections = {name: {"kind": "native"} for name in backends}
    config = Config(backends=sections, endpoints={"chat": Endpoint(served_entities=entities)})
    app = create_app(config, backends)
    async with running(app) as client:
        yield client


async def until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not become true")


async def test_requests_wait_for_the_next_engine(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_health, "_LOADING_TIMEOUT", 0.0)  # which is for what has never been ready
    monkeypatch.setattr(service, "_HEALTH_INTERVAL", 0.01)
    async with serving(engine) as client:
        engine.up = False
        engine.die()
        await known_to_be_loading(client)
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await asyncio.sleep(0.1)
        assert not asking.done()
        engine.up = True
        answer = await asking
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 3


async def test_requests_fail_over_to_another_entity_while_the_engine_restarts(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_HEALTH_INTERVAL", 0.01)
    other = FakeEngine(rule=rule)
    async with serving(engine, other) as client:
        engine.up = False
        engine.die()
        await asyncio.sleep(0.1)
        answer = await client.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 200, answer.text
        assert len(other.submitted) == 1


async def known_to_be_loading(client: httpx.AsyncClient) -> None:
    for _ in range(1000):
        if (await client.get("/health/ready")).status_code == 503:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody noticed")
