"""An arm that dies under load: requests fail over and count as its failures, its state is reported."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.config import parse
from tests.gateway.serving import chat, listening, running, scripted, unit_for

CONFIG = """
[backends.a]
kind = "openai"
url = "http://127.0.0.1:{a}/v1"
failures = 3
health_interval = 0.1
[backends.b]
kind = "openai"
url = "http://127.0.0.1:{b}/v1"
[endpoints.chat]
served_entities = [
  {{ name = "a", backend = "a", model = "echo", traffic_percentage = 50 }},
  {{ name = "b", backend = "b", model = "echo", traffic_percentage = 50 }},
]
"""
URL = "/api/2.0/serving-endpoints/chat"


@asynccontextmanager
async def load(client: httpx.AsyncClient) -> AsyncIterator[list[tuple[int, str]]]:
    """Four clients that send requests until the block ends; yields a list of (status, arm)."""
    answers: list[tuple[int, str]] = []
    done = asyncio.Event()

    async def ask(number: int) -> None:
        while not done.is_set():
            answer = await chat(client, user=f"user {len(answers) % 50}", stream=bool(number % 2))
            assert number % 2 == 0 or answer.text.endswith("data: [DONE]\n\n")
            answers.append((answer.status_code, answer.headers["served-model-name"]))

    asking = [asyncio.create_task(ask(number)) for number in range(4)]
    yield answers
    done.set()
    await asyncio.gather(*asking)


async def until(holds: Callable[[], Any]) -> Any:
    for _ in range(1000):
        found = holds()
        if found := await found if asyncio.iscoroutine(found) else found:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to hold")


async def states(client: httpx.AsyncClient) -> dict[str, str]:
    entities = (await client.get(URL)).json()["config"]["served_entities"]
    return {entity["name"]: entity["state"]["deployment"].removeprefix("DEPLOYMENT_") for entity in entities}


async def arms(client: httpx.AsyncClient) -> dict[str, Any]:
    return {arm["name"]: arm for arm in (await client.get("/serving-endpoints/chat/experiment")).json()["arms"]}


@pytest.mark.slow
async def test_an_arm_dies_and_returns_under_load() -> None:
    async with reserved_port() as a, listening(scripted("echo")[0]) as b, AsyncExitStack() as first:
        await first.enter_async_context(listening(scripted("echo")[0], a))
        async with running(create_app(parse(CONFIG.format(a=a, b=b)))) as client:
            await until(lambda: _is(states(client), {"a": "READY", "b": "READY"}))
            async with load(client) as answers:
                await until(lambda: {arm for _, arm in answers} == {"a", "b"})
                await first.aclose()
                await until(lambda: _is(states(client), {"a": "RECOVERING", "b": "READY"}))
                before = len(answers)
                await until(lambda: len(answers) > before + 100)
                assert {arm for _, arm in answers[before + 8 :]} == {"b"}  # but for what was under way
                async with listening(scripted("echo")[0], a):
                    await until(lambda: _is(states(client), {"a": "READY", "b": "READY"}))
                    before = len(answers)
                    await until(lambda: "a" in {arm for _, arm in answers[before:]})
                    assert (await chat(client, user=unit_for("a"))).headers["served-model-name"] == "a"
            found = await arms(client)
            assert {status for status, _ in answers} == {200}
            answered = Counter(arm for _, arm in answers)
            fell_back = found["a"]["apart"]["fell_back"]
            assert fell_back > 20
            assert found["a"]["exposures"] == answered["a"] + 1 + fell_back
            assert found["a"]["means"]["success"] == pytest.approx((answered["a"] + 1) / found["a"]["exposures"])
            assert [found["a"]["means"]["served"], found["b"]["means"]["success"]] == [1.0, 1.0]
            assert found["a"]["finish_reasons"] == {"eos": answered["a"] + 1}
            assert (
                found["b"]["finish_reasons"] == {"eos": found["b"]["exposures"]} == {"eos": answered["b"] - fell_back}
            )


@asynccontextmanager
async def reserved_port() -> AsyncIterator[int]:
    """A port that stays reserved, whether or not a server listens on it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


async def _is(found: Any, wanted: Any) -> bool:
    return await found == wanted
