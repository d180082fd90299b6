"""Shadows get copies and never answer; the outcome of a copy makes no difference for clients."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable

import httpx
import pytest
from litestar import Litestar

from backends.base import Health
from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Config, ConfigError, Endpoint, ServedEntity, Shadow, parse
from gateway.deployment.deployments import changed
from schemas.catalog import Change
from schemas.catalog import ServedEntity as Entity
from schemas.errors import BackendTimeout
from schemas.ir import Events, Generate
from tests.gateway.serving import MESSAGES, chat, figures, running


def application(model: str, shadow: Shadow, live: str = "echo") -> tuple[Litestar, ScriptedBackend]:
    """A live arm, and a shadow on a backend of its own."""
    arms = (
        ServedEntity(name="live", backend="s", model=live, traffic_percentage=100),
        ServedEntity(name="copy", backend="t", model=model, traffic_percentage=0, shadow=shadow),
    )
    backends = {name: ScriptedBackend(name) for name in "st"}
    config = Config(
        backends={name: {"kind": "scripted"} for name in backends}, endpoints={"chat": Endpoint(served_entities=arms)}
    )
    return create_app(config, backends), backends["t"]


async def ends(client: httpx.AsyncClient) -> dict[str, int]:
    """How copies ended."""
    text = (await client.get("/metrics")).text
    found = re.findall(r'^gw_shadow_requests_total{.*outcome="(\w+)".*} (\d+)', text, re.MULTILINE)
    return {outcome: int(count) for outcome, count in found}


async def until(client: httpx.AsyncClient, holds: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    for _ in range(500):
        if holds(found := await ends(client)):
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(found)


COPIES = {
    "echo": "ok",
    "error": "backend_failed",
    "error-after-3": "backend_failed",
    "truncate-before": "incomplete",
    "crash": "internal",
    "overloaded": "overloaded",
    "hang": "timeout",
}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", COPIES)
async def test_the_answer_is_the_same_whatever_becomes_of_the_copy(model: str, stream: bool) -> None:
    app, _ = application(model, Shadow(timeout=0.2 if model == "hang" else 600.0))
    async with running(app) as client:
        answer = await chat(client, stream=stream)
        assert (answer.status_code, answer.headers["served-model-name"]) == (200, "live")
        assert answer.text.endswith("data: [DONE]\n\n") is stream
        assert await until(client, bool) == {COPIES[model]: 1}
        found = await figures(client)
        assert (found["live"]["exposures"], found["live"]["apart"]["shadow"]) == (1, 0)
        assert (found["copy"]["exposures"], found["copy"]["means"], found["copy"]["apart"]["shadow"]) == (0, {}, 1)


@pytest.mark.slow
async def test_copies_are_figures_in_the_report() -> None:
    app, _ = application("slow", Shadow(max_concurrent_requests=8))
    async with running(app) as client:
        for user in range(8):
            await chat(client, user=f"user {user}")
        await until(client, lambda found: sum(found.values()) == 8)
        (found,) = (await client.get("/serving-endpoints/chat/experiment")).json()["shadows"]
    assert (found["arm"], found["copies"], found["sent"]["mean"], found["success"]["mean"]) == ("copy", 8, 1.0, 1.0)
    assert 0 < found["success"]["low"] < found["success"]["high"] == 1
    assert 0.05 < found["time_to_first_token"]["mean"] < found["latency"]["mean"]
    assert found["completion_tokens"]["mean"] > 1


@pytest.mark.slow
async def test_dropped_and_failed_copies_are_figures_too(monkeypatch: pytest.MonkeyPatch) -> None:
    app, backend = application("hang", Shadow(max_concurrent_requests=3))
    may_fail = asyncio.Event()

    async def fail_late(_: Generate) -> AsyncGenerator[Events, None]:
        await may_fail.wait()
        raise BackendTimeout("It takes too long.")
        yield ()

    monkeypatch.setattr(backend, "generate", fail_late)
    async with running(app) as client:
        for _ in range(10):
            await chat(client)
        may_fail.set()
        await until(client, lambda found: sum(found.values()) == 10)
        (found,) = (await client.get("/serving-endpoints/chat/experiment")).json()["shadows"]
    assert (found["copies"], found["sent"]["mean"], found["success"]["mean"]) == (10, pytest.approx(0.3), 0.0)
    assert found["latency"] == {"mean": None, "low": None, "high": None}


@pytest.mark.slow
async def test_copies_over_the_limit_are_not_sent() -> None:
    app, backend = application("hang", Shadow(max_concurrent_requests=3))
    async with running(app) as client:
        for _ in range(10):
            assert (await chat(client)).status_code == 200
        assert await ends(client) == {"dropped": 7}
        assert backend.active == 3
    assert backend.active == 0


async def test_a_shadow_is_never_fallen_back_to() -> None:
    app, _ = application("echo", Shadow(), live="error")
    async with running(app) as client:
        answer = await chat(client)
        assert (answer.status_code, answer.headers["served-model-name"]) == (502, "live")


async def test_no_copy_is_made_of_direct_calls_and_of_what_generates_nothing() -> None:
    app, _ = application("echo", Shadow())
    async with running(app) as client:
        for model in ("chat:live", "chat:copy"):
            assert (await chat(client, model=model)).headers["served-model-name"] == model[5:]
        await client.post("/v1/embeddings", json={"model": "chat", "input": "Hi"})
        await client.post("/v1/chat/completions", json={"model": "chat", "messages": MESSAGES[:0]})
        assert await ends(client) == {}


@pytest.mark.slow
async def test_a_shadow_whose_backend_is_gone_leaves_the_endpoint_ready() -> None:
    app, backend = application("echo", Shadow())
    async with running(app) as client:
        backend.health = Health("failed")
        await app.state.service._check_health()
        assert (await client.get("/health/ready")).status_code == 200
        listed = (await client.get("/api/2.0/serving-endpoints/chat")).json()
        assert listed["state"]["ready"] == "READY"
        assert (await chat(client)).status_code == 200
        assert await ends(client) == {"dropped": 1}


def test_an_update_keeps_a_shadow_until_it_gets_a_share() -> None:
    app, _ = application("echo", Shadow(timeout=3.0))
    live = app.state.service._live.deployments
    health = {name: Health("ready") for name in "st"}

    def after(share: int) -> list[Shadow | None]:
        arms = (Entity("live", "s/echo", 100 - share), Entity("copy", "t/echo", share))
        made = changed(live, Change(action="update", endpoint="chat", served_entities=arms), health, 1)
        assert made is not None
        return [arm.shadow for arm in made.serving.served_entities]

    assert after(0) == [None, Shadow(timeout=3.0)]
    assert after(10) == [None, None]


def test_a_shadow_with_a_share_is_refused() -> None:
    text = """[backends.s]
kind = "scripted"
[endpoints.chat]
served_entities = [{ name = "a", backend = "s", shadow = {} }]
"""
    with pytest.raises(ConfigError, match=r"4: endpoints.chat.a: a shadow answers no client"):
        parse(text)
