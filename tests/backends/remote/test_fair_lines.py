"""Requests that wait for a connection to a remote: keys take turns, and short ones need not wait for long ones."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from backends.remote.backend import RemoteBackend
from backends.transport import Transport
from backends.transport.general import GeneralTransport
from schemas.errors import Overloaded
from schemas.ir import ChatPrompt, Generate, Message, Stopping
from tests.backends.transport.servers import forward_proxy, http2_server
from tests.faults.recorded import ask, record, remote, request
from tests.faults.upstream import Asked, Pause, Step, response, upstream

WAYS = pytest.mark.parametrize("proxied", [False, True], ids=["direct", "general"])


def from_key(key: str, tokens: int = 10) -> Generate:
    """A request of a key, which the upstream knows by its text."""
    prompt = ChatPrompt((Message("user", key),))
    return replace(
        request("openai", stream=False), prompts=(prompt,), flow=key, stopping=Stopping(max_new_tokens=tokens)
    )


def name_of(asked: Asked) -> str:
    return str(json.loads(asked.body)["messages"][0]["content"])


async def order(proxied: bool, waiting: list[Generate], later: Generate, **limits: int | bool) -> list[str]:
    """Whose requests a server gets over one connection; `later` comes while the third of `waiting` is answered."""
    answer, came = response(await record("openai", stream=False)), list[str]()
    third = asyncio.Event()

    def play(asked: Asked) -> tuple[Step, ...]:
        if asked.line.startswith("GET "):
            return (response(b"{}"),)
        came.append(name_of(asked))
        if len(came) != 3:
            return (answer,)
        third.set()
        return Pause(0.5), answer  # for the next request to join the line, which takes some turns of the event loop

    async with upstream(play) as there, forward_proxy() as proxy:  # type: ignore[attr-defined]
        options = {"proxy": f"http://127.0.0.1:{proxy.port}"} if proxied else {}
        url = f"http://models.example:{there.port}" if proxied else there.url
        limits = {"connections": 1, "waiting": 2000} | limits
        async with remote("openai", url, limits=limits, **options) as backend:
            assert isinstance(backend._connected.requests, GeneralTransport if proxied else Transport)
            tasks = [asyncio.create_task(ask(backend, each)) for each in waiting]
            await third.wait()
            await asyncio.wait_for(ask(backend, later), 60)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return came


@pytest.mark.slow
@WAYS
async def test_a_key_with_a_thousand_waiting_requests_delays_another_one_by_one(proxied: bool) -> None:
    came = await order(proxied, [from_key("greedy")] * 1000, from_key("other"))
    # Two at most: one is on its way, and one may be the first in the line.
    assert came.index("other") - 3 <= 2


@pytest.mark.slow
async def test_keys_take_turns_for_the_streams_of_an_http2_connection() -> None:
    came, full, answered = list[str](), asyncio.Event(), asyncio.Event()

    async def before(body: bytes) -> None:
        if not body:
            return  # a health check
        came.append(str(json.loads(body)["messages"][0]["content"]))
        if len(came) == 100:
            full.set()
        await answered.wait()

    async with (
        http2_server(await record("openai", stream=False), before=before) as there,
        remote("openai", f"http://127.0.0.1:{there.port}", http2=True) as backend,
    ):
        tasks = [asyncio.create_task(ask(backend, from_key("greedy"))) for _ in range(160)]
        await asyncio.wait_for(full.wait(), 60)
        tasks.append(asyncio.create_task(ask(backend, from_key("other"))))
        line = backend._connected.requests._turns._waiting  # type: ignore[union-attr]
        async with asyncio.timeout(60):
            while len(line) != 61:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        answered.set()
        assert [error for _, error in await asyncio.gather(*tasks)] == [None] * 161
    # Two may come before it: the first in the line, and one of the turn of the event loop.
    assert came.index("other") - 100 <= 2


@pytest.mark.slow
@WAYS
async def test_a_short_request_overtakes_long_ones_if_that_is_wanted(proxied: bool) -> None:
    waiting, short = [from_key("", 4000)] * 30, replace(from_key("short"), flow="")
    assert (await order(proxied, waiting, short, short_first=True)).index("short") - 3 <= 2
    assert (await order(proxied, waiting, short)).index("short") == 30


@WAYS
async def test_a_full_line_refuses_and_a_cancelled_request_leaves_it(proxied: bool) -> None:
    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if asked.line.startswith("GET ") else ()

    async def waits(backend: RemoteBackend, count: int) -> None:
        line = backend._connected.requests._turns._waiting if proxied else backend._connected.requests.pool._waiting  # type: ignore[union-attr]
        async with asyncio.timeout(60):
            while len(line) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async with upstream(play) as there, forward_proxy() as proxy:  # type: ignore[attr-defined]
        options = {"proxy": f"http://127.0.0.1:{proxy.port}"} if proxied else {}
        url = f"http://models.example:{there.port}" if proxied else there.url
        async with remote("openai", url, limits={"connections": 1, "waiting": 2}, **options) as backend:
            # Until the health check's answer is read to its end.
            while (turns := getattr(backend._connected.requests, "_turns", None)) and turns._running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            tasks = [asyncio.create_task(ask(backend, from_key("a"))) for _ in range(3)]
            await waits(backend, 2)
            assert isinstance((await ask(backend, from_key("b")))[1], Overloaded)
            tasks[1].cancel()
            await waits(backend, 1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await waits(backend, 0)
