"""Requests for one of several servers without a task: which of them is asked, what each has, and who is asked next."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from backends.remote import kinds
from backends.remote.servers import RemoteServers
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity, ServerSection
from tests.faults.upstream import END, Asked, Close, Hang, Step, Upstream, Wait, chunk, response, upstream
from tests.faults.upstream import STREAM as HEAD
from tests.gateway.http.direct.clients import CHAT, CHATS
from tests.gateway.http.direct.gateways import WHOLE
from tests.gateway.http.direct.test_lane import CALL
from tests.gateway.http.direct.test_stream import ENDING, ROLE, STEPS, WORDS
from tests.gateway.serving import listening

STREAM = CHAT | {"stream": True}
CALLS = CHATS.answer(finish_reason="tool_calls", message={"role": "assistant", "tool_calls": [CALL]})
"""An answer that a task reads."""
BEGIN = HEAD + b"".join(map(chunk, (ROLE, *WORDS)))
REST = b"".join(map(chunk, ENDING)) + END


class Servers:
    """A gateway in front of several servers. `play` has what each of them does, first to last."""

    def __init__(self, backend: RemoteServers, upstreams: list[Upstream], play: list[tuple[Step, ...]]) -> None:
        self.backend, self.upstreams, self.play = backend, upstreams, play
        self.client = httpx.AsyncClient(timeout=60, headers={"authorization": "Bearer secret"})

    @property
    def asked(self) -> list[int]:
        return [sum(not asked.line.startswith("GET ") for asked in each.asked) for each in self.upstreams]

    @property
    def loads(self) -> list[int]:
        return [server.in_flight for server in self.backend._servers]

    async def ask(self, body: dict[str, Any] = CHAT) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=body)


@asynccontextmanager
async def servers(*play: tuple[Step, ...], **options: Any) -> AsyncIterator[Servers]:
    plays = [*play]

    def playing(number: int) -> Any:
        def answer(asked: Asked) -> tuple[Step, ...]:
            return (response(b"{}"),) if asked.line.startswith("GET ") else plays[number]

        return answer

    async with AsyncExitStack() as stack:
        far = [await stack.enter_async_context(upstream(playing(number))) for number in range(len(play))]
        given = {"urls": [f"{each.url}/v1" for each in far], "routing": "least", "retries": {"attempts": 1}}
        backend = kinds.openai("far", given | {"health_interval": 3600.0} | options)
        assert isinstance(backend, RemoteServers)
        config = Config(
            server=ServerSection(keys_env="DIRECT_KEY", default="chat"),
            backends={"far": {"kind": "openai"}},
            endpoints={"chat": Endpoint(served_entities=(ServedEntity(name="one", backend="far"),))},
        )
        port = await stack.enter_async_context(listening(create_app(config, {"far": backend})))
        made = Servers(backend, far, plays)
        made.client.base_url = httpx.URL(f"http://127.0.0.1:{port}")
        yield await stack.enter_async_context(_closing(made))


@asynccontextmanager
async def _closing(made: Servers) -> AsyncIterator[Servers]:
    async with made.client:
        yield made


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_servers_take_turns_without_a_task(body: dict[str, Any], tasks: list[str]) -> None:
    steps = STEPS if body is STREAM else (response(WHOLE),)
    async with servers(steps, steps) as there:
        for _ in range(8):
            assert (await there.ask(body)).status_code == 200
        assert sorted(there.asked) in ([3, 5], [4, 4])
        assert there.loads == [0, 0]
    assert tasks == ["direct"] * 8


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_a_request_is_one_of_its_servers_until_its_end(body: dict[str, Any], tasks: list[str]) -> None:
    event = asyncio.Event()
    steps: tuple[Step, ...] = (BEGIN, Wait(event), REST) if body is STREAM else (Wait(event), response(WHOLE))
    async with servers(steps, steps, steps) as there:
        slow = [asyncio.create_task(there.ask(body)) for _ in range(3)]
        while sum(there.asked) < 3:  # noqa: ASYNC110 - by the sockets
            await asyncio.sleep(0.001)
        assert there.asked == there.loads == [1, 1, 1]
        event.set()
        assert {(await each).status_code for each in slow} == {200}
        assert there.loads == [0, 0, 0]
    assert tasks == ["direct"] * 3


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", ["closes", "refuses"])
async def test_another_server_is_asked_if_the_first_fails(body: dict[str, Any], fault: str, tasks: list[str]) -> None:
    steps = STEPS if body is STREAM else (response(WHOLE),)
    failing = (Close(),) if fault == "closes" else (response(b"no", "503 Service Unavailable"),)
    async with servers(failing, failing) as there:
        assert (await there.ask(body)).status_code in (502, 503)
        assert there.asked == [1, 1]  # each of them once
        there.play[1] = steps
        for _ in range(4):
            assert (await there.ask(body)).status_code == 200
        assert there.loads == [0, 0]
    assert set(tasks) == {"direct", "handed over", "task"}


async def test_a_task_goes_on_with_the_server_that_was_asked(tasks: list[str]) -> None:
    answers = response(CALLS)
    async with servers((answers,), (answers,), (answers,)) as there:
        for number in range(1, 7):
            answer = await there.ask()
            assert json.loads(answer.content)["choices"][0]["finish_reason"] == "tool_calls"
            assert sum(there.asked) == number
        assert there.loads == [0, 0, 0]
    assert tasks == ["direct", "handed over", "task"] * 6


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_frees_its_server(begun: bool) -> None:
    steps: tuple[Step, ...] = (BEGIN, Hang()) if begun else (Hang(),)
    async with servers(steps, steps) as there:
        async with there.client.stream("POST", "/v1/chat/completions", json=STREAM) if begun else _left(there):
            while not sum(there.asked):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert sum(there.loads) == 1
        while sum(there.loads) or not sum(each.gone for each in there.upstreams):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@asynccontextmanager
async def _left(there: Servers) -> AsyncIterator[None]:
    """A client that leaves before its answer begins."""
    asking = asyncio.create_task(there.ask(STREAM))
    yield
    asking.cancel()
    await asyncio.wait([asking])


async def test_latencies_are_learned_in_tasks(tasks: list[str]) -> None:
    async with servers((response(WHOLE),), (response(WHOLE),), routing="latency") as there:
        for _ in range(3):
            assert (await there.ask()).status_code == 200
        assert [server.latency > 0 for server in there.backend._servers] == [count > 0 for count in there.asked]
    assert tasks == ["task"] * 3
