"""Several servers of one model: who gets a request, who is asked next, and what is remembered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import repeat
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from backends.base import Health
from backends.remote import kinds, servers
from backends.remote.options import RemoteOptions
from backends.remote.servers import RemoteServers
from schemas.errors import BackendFailed, BackendTimeout, Incomplete, InvalidRequest
from schemas.ir import ChatPrompt, Embed, Generate, Message, TextPrompt
from tests.faults.recorded import ask, record, request
from tests.faults.upstream import Asked, Close, Hang, Pause, Reset, Step, Upstream, response, upstream

EMBEDDED = (
    b'{"object": "list", "model": "m", "data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 1}}'
)


@pytest.fixture(autouse=True)
def first_of_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first of equally loaded servers chosen."""
    monkeypatch.setattr(servers, "draws", lambda _: repeat(0.0))


class Server:
    """One of the servers: what it answers may change."""

    def __init__(self, answer: bytes) -> None:
        self.steps: tuple[Step, ...] = (response(answer),)
        self.upstream: Upstream

    def play(self, asked: Asked) -> tuple[Step, ...]:
        if asked.line.startswith("GET "):
            return (response(b"{}"),)
        return (response(EMBEDDED),) if "embeddings" in asked.line else self.steps

    @property
    def asked(self) -> int:
        return sum(not asked.line.startswith("GET ") for asked in self.upstream.asked)


@asynccontextmanager
async def running(count: int, **options: Any) -> AsyncIterator[tuple[RemoteServers, list[Server]]]:
    answer = await record("openai", stream=False)
    made = [Server(answer) for _ in range(count)]
    async with AsyncExitStack() as stack:
        for each in made:
            each.upstream = await stack.enter_async_context(upstream(each.play))
        given = {"urls": [each.upstream.url for each in made], "health_interval": 3600.0, "retries": {"attempts": 1}}
        backend = kinds.openai("several", given | options)
        assert isinstance(backend, RemoteServers)
        await backend.start()
        for each in backend._servers:
            while (await each.backend.healthy()).status != "ready":  # on a busy machine the first check may be late
                await each.backend._health_check.check()  # type: ignore[union-attr]
        try:
            yield backend, made
        finally:
            await backend.aclose()


def chat(text: str, *turns: str) -> Generate:
    messages = (Message("user", text), *(Message("assistant", turn) for turn in turns))
    return replace(request("openai", stream=False), prompts=(ChatPrompt(messages),))


@pytest.mark.slow
async def test_a_request_goes_to_the_server_with_the_fewest() -> None:
    async with running(3, routing="least") as (backend, made):
        for each in made:
            each.steps = (Pause(0.2), *each.steps)
        await asyncio.gather(*(ask(backend, chat("Say it.")) for _ in range(9)))  # type: ignore[arg-type]
        assert [each.asked for each in made] == [3, 3, 3]


async def test_conversations_stay_at_their_servers() -> None:
    async with running(3, routing="conversation") as (backend, made):
        homes = set()
        for number in range(12):
            before = [each.asked for each in made]
            for turns in ((), ("One.",), ("One.", "Two.")):
                await ask(backend, chat(f"Chat {number}", *turns))  # type: ignore[arg-type]
            gained = [each.asked - had for each, had in zip(made, before, strict=True)]
            assert sorted(gained) == [0, 0, 3]
            homes.add(gained.index(3))
        assert len(homes) > 1


async def test_a_long_prompt_goes_where_its_beginning_went() -> None:
    """Texts have no conversation, and so no home but the one that is remembered."""
    async with running(2) as (backend, made):
        for each in made:  # the chat's home depends on their ports
            each.steps = (Hang(),)
        text = "All men are born. " * 200
        slow = asyncio.create_task(ask(backend, request("openai", stream=False)))  # type: ignore[arg-type]
        while not any(each.asked for each in made):  # noqa: ASYNC110 - by the socket
            await asyncio.sleep(0.001)
        long = replace(request("openai", stream=False), prompts=(TextPrompt(text),), raw_prompt=True)
        order = backend._order(long)
        assert (backend._order(replace(long, prompts=(TextPrompt(text + "And?"),))))[0] is order[0]
        assert Counter(map(len, [each.sent for each in backend._servers])) == Counter([len(text) // 1024, 0])
        slow.cancel()
        await asyncio.wait([slow])


def test_the_oldest_blocks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_REMEMBERED", 3)
    backend = RemoteServers("several", {"http://a": None, "http://b": None}, "prefix")  # type: ignore[dict-item]
    server = backend._servers[1]
    backend._remember(server, [b"1", b"2"])
    backend._remember(server, [b"1", b"3", b"4"])
    assert backend._index.hits([b"1", b"3"]) == {1: 2}
    assert backend._index.hits([b"2"]) == {}
    assert len(backend._index) == 3


async def test_latency_prefers_the_server_that_answers_first() -> None:
    async with running(2, routing="latency") as (backend, made):
        made[0].steps = (Pause(0.3), *made[0].steps)
        for _ in range(6):
            await ask(backend, chat("Say it."))  # type: ignore[arg-type]
        assert [each.asked for each in made] == [1, 5]


async def test_an_endpoint_picker_chooses_among_the_servers_that_are_well() -> None:
    async with running(3, routing="conversation") as (backend, made):
        addresses = [each.upstream.url.removeprefix("http://").partition("/")[0] for each in made]
        picked = replace(chat("Say it."), destinations=("192.0.2.1:80", addresses[2], addresses[0]))
        for _ in range(3):
            await ask(backend, picked)  # type: ignore[arg-type]
        assert [each.asked for each in made] == [0, 0, 3]
        made[2].steps = (Reset(),)
        assert (await ask(backend, picked))[1] is None  # type: ignore[arg-type]
        assert sum(each.asked for each in made[:2]) == 1, "another server answers if the chosen one fails"


@pytest.mark.parametrize(
    ("url", "address"),
    [("https://u:p@a.example/v1", "a.example:443"), ("http://[::1]/v1", "[::1]:80"), ("http://a:8000", "a:8000")],
)
def test_the_address_of_a_server(url: str, address: str) -> None:
    backend = RemoteServers("several", {url: None}, "least")  # type: ignore[dict-item]
    assert backend._servers[0].address == address


@pytest.mark.parametrize("fault", [(Reset(),), (response(b"{}", "500 Broken"),), (response(b"{}", "429 Slow"),)])
async def test_another_server_is_asked_if_one_fails_before_its_first_event(fault: tuple[Step, ...]) -> None:
    async with running(2, routing="least") as (backend, made):
        made[0].steps = fault
        events, error = await ask(backend, chat("Say it."))  # type: ignore[arg-type]
        assert error is None
        assert events
        assert [each.asked for each in made] == [1, 1]


async def test_a_refused_request_and_a_timeout_are_not_asked_again() -> None:
    async with running(2, routing="least", timeouts={"whole": 0.2}) as (backend, made):
        made[0].steps = (response(b'{"error": {"message": "no"}}', "400 Bad Request"),)
        _, error = await ask(backend, chat("Say it."))  # type: ignore[arg-type]
        assert isinstance(error, InvalidRequest)
        made[0].steps = (Pause(5.0),)
        _, error = await ask(backend, chat("Say it."))  # type: ignore[arg-type]
        assert isinstance(error, BackendTimeout)
        assert made[1].asked == 0


@pytest.mark.slow
async def test_a_stream_that_has_begun_is_not_begun_again() -> None:
    body = await record("openai", stream=True)
    async with running(2, routing="least") as (backend, made):
        made[0].steps = (response(body[: len(body) // 2], type="text/event-stream"), Close())
        events, error = await ask(backend, replace(chat("Say it."), stream=True))  # type: ignore[arg-type]
        assert events
        assert isinstance(error, Incomplete | BackendFailed)
        assert made[1].asked == 0


async def test_a_server_that_is_down_gets_no_requests_and_embeddings_find_the_other() -> None:
    async with running(2, routing="least", failures=1) as (backend, made):
        made[0].steps = (Reset(),)
        for _ in range(3):
            await ask(backend, chat("Say it."))  # type: ignore[arg-type]
        assert [each.asked for each in made] == [1, 3]
        assert await backend.healthy() == Health("ready")
        made_vectors = await backend.embed(Embed(id="e", model="m", inputs=(TextPrompt("a"),)))
        assert made_vectors.vectors == ((1.0,),)
        assert [each.asked for each in made] == [1, 4]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "give `url`, or `urls`"),
        ({"url": "http://a", "urls": ["http://b"]}, "give `url`, or `urls`"),
        ({"urls": ["http://a", "http://a"]}, "twice"),
        ({"urls": ["http://a", "ftp://b"]}, "not an http or https URL"),
        ({"url": "http://a", "routing": "random"}, "random"),
    ],
)
def test_wrong_options(given: dict[str, Any], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        msgspec.convert(given, RemoteOptions)
