"""Requests that come while a worker's backends load for the first time: who answers, and what the experiment counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from litestar import Litestar
from structlog.testing import capture_logs

from backends.base import Health
from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Config, Endpoint, Experiment, Fallback, Guardrail, ServedEntity
from gateway.routing import backend_health
from tests.gateway.serving import chat, figures, unit_for


class Loading(ScriptedBackend):
    """Loads until it is let go."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.health = Health("loading")
        self.loaded = asyncio.Event()

    async def start(self) -> None:
        await self.loaded.wait()
        self.health = Health("ready")


class Gateway:
    """Two arms, whose backends both load."""

    def __init__(self, *, fallback: bool = True, shares: tuple[int, int] = (50, 50)) -> None:
        self.a, self.b = Loading("a"), Loading("b")
        arms = tuple(
            ServedEntity(name=name, backend=name, model="echo", traffic_percentage=share)
            for name, share in zip("ab", shares, strict=True)
        )
        guarded = Experiment(guardrail=Guardrail(worse_than=0.02))
        endpoint = Endpoint(served_entities=arms, fallback=Fallback(enabled=fallback), experiment=guarded)
        config = Config(backends={name: {"kind": "scripted"} for name in "ab"}, endpoints={"chat": endpoint})
        self.app: Litestar = create_app(config, {"a": self.a, "b": self.b})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[httpx.AsyncClient]:
        async with self.app.lifespan():
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                yield client

    async def load(self, backend: Loading) -> None:
        backend.loaded.set()
        while backend.name in self.app.state.service.backend_health.starting:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def answered_by(request: Any) -> str:
    answer = await request
    assert answer.status_code == 200, answer.text
    return str(answer.headers["served-model-name"])


@pytest.fixture
def long_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for: as if backends had been loading for long."""
    monkeypatch.setattr(backend_health, "_LOADING_TIMEOUT", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_waits_for_its_own_arm_and_nothing_is_compared_until_all_have_loaded(stream: bool) -> None:
    gateway = Gateway()
    async with gateway.running() as client:
        asked = {arm: asyncio.create_task(chat(client, user=unit_for(arm), stream=stream)) for arm in "ab"}
        await asyncio.sleep(0.02)
        assert not any(each.done() for each in asked.values())
        await gateway.load(gateway.b)
        assert await answered_by(asked["b"]) == "b"
        await asyncio.sleep(0.1)
        assert not asked["a"].done()  # another arm is ready, and both arms are new
        await gateway.load(gateway.a)
        assert await answered_by(asked["a"]) == "a"
        for arm in (found := await figures(client)).values():
            assert (arm["exposures"], arm["means"], arm["apart"]["loading"], arm["apart"]["fell_back"]) == (0, {}, 1, 0)
        assert [*found] == ["a", "b"]
        assert "gw_fallbacks_total{" not in (await client.get("/metrics")).text
        for arm in "ab":
            assert await answered_by(chat(client, user=unit_for(arm), stream=stream)) == arm
        for arm in (await figures(client)).values():
            assert (arm["exposures"], arm["means"]["success"], arm["apart"]["loading"]) == (1, 1.0, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("long_loading")
async def test_a_model_that_loads_for_long_is_neither_waited_for_nor_stopped() -> None:
    gateway = Gateway()
    async with gateway.running() as client:
        await gateway.load(gateway.a)
        with capture_logs() as logs:
            for _ in range(30):  # a guardrail stops a dead arm within ten
                for arm in "ab":
                    assert await answered_by(chat(client, user=unit_for(arm))) == "a"
        tried = [(each["served"], each["outcome"]) for each in logs if each["event"] == "fallback.tried"]
        assert tried == [("b", "loading")] * 30
        assert not gateway.app.state.service.experiments.stopped()["chat"]
        await gateway.load(gateway.b)
        assert await answered_by(chat(client, user=unit_for("b"))) == "b"
        found = await figures(client)
        assert [found[arm]["apart"]["loading"] for arm in "ab"] == [30, 30]
        assert [found[arm]["exposures"] for arm in "ab"] == [0, 1]
        assert [found[arm]["apart"]["stopped"] for arm in "ab"] == [0, 0]
        assert 'gw_fallbacks_total{model="chat",served="b"} 30.0' in (await client.get("/metrics")).text


@pytest.mark.usefixtures("long_loading")
@pytest.mark.parametrize("fallback", [False, True])
async def test_nobody_is_ready(fallback: bool) -> None:
    gateway = Gateway(fallback=fallback)
    async with gateway.running() as client:
        answer = await chat(client, user=unit_for("a"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "still loading" in answer.text
        arm = (await figures(client))["a"]
        assert (arm["exposures"], arm["means"], arm["apart"]["loading"]) == (0, {}, 1)


@pytest.mark.parametrize("fallback", [False, True])
async def test_the_clients_own_deadline_ends_the_wait(fallback: bool) -> None:
    gateway = Gateway(fallback=fallback)
    async with gateway.running() as client:
        asked = {"user": unit_for("a"), "model": "chat", "messages": [{"role": "user", "content": "Hi"}]}
        await gateway.load(gateway.b)
        answer = await client.post("/v1/chat/completions", json=asked, headers={"x-request-timeout": "0.05"})
        assert (answer.status_code, "in the time that the request allows" in answer.text) == (504, True)


async def test_an_arm_without_traffic_keeps_nothing_from_being_compared() -> None:
    gateway = Gateway(shares=(100, 0))
    async with gateway.running() as client:
        await gateway.load(gateway.a)
        assert await answered_by(chat(client)) == "a"
        found = await figures(client)
        assert (found["a"]["exposures"], found["a"]["means"]["success"], found["a"]["apart"]["loading"]) == (1, 1.0, 0)


@pytest.mark.slow
async def test_of_arms_that_were_started_and_are_not_ready_the_assigned_one_is_asked() -> None:
    gateway = Gateway()
    async with gateway.running() as client:
        for backend in (gateway.a, gateway.b):
            await gateway.load(backend)
            backend.health = Health("loading", "nobody listens")  # a server that was not reached, or a lost engine
        await gateway.app.state.service._check_health()
        for arm in "ab":
            assert await answered_by(chat(client, user=unit_for(arm))) == arm
        gateway.b.health = Health("ready")
        await gateway.app.state.service._check_health()
        assert await answered_by(chat(client, user=unit_for("a"))) == "b"
        found = await figures(client)
        # An error is known of it, so to be passed over is its failure.
        assert (found["a"]["means"]["success"], found["b"]["means"]["success"]) == (0.5, 1.0)
        assert [found[arm]["apart"]["loading"] for arm in "ab"] == [0, 0]
