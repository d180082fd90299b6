"""Gateways that are each other's backends: a request ends after a few rounds, and the client learns why."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.config import parse
from gateway.http.reading.via import MOST_GATEWAYS, gateways_passed
from tests.faults.upstream import Asked, Step, response, upstream
from tests.gateway.serving import listening, running
from tests.ports import free_port

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 9}
WHOLE = response(
    b'{"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'
)


def configured(kind: str, url: str) -> str:
    backend = f'[backends.far]\nkind = "{kind}"\nurl = "{url}"\nhealth_interval = 0.1\n'
    return f'{backend}[endpoints.m]\nserved_entities = [{{ name = "m", backend = "far", model = "m" }}]\n'


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "path"), [("openai", "/v1"), ("anthropic", ""), ("tgi", "")])
async def test_a_loop_ends(kind: str, path: str, stream: bool) -> None:
    ports = free_port(), free_port()
    async with AsyncExitStack() as stack:
        apps = [create_app(parse(configured(kind, f"http://127.0.0.1:{port}{path}"))) for port in reversed(ports)]
        # At the same time: each is ready once it reaches the other one.
        await asyncio.gather(*(stack.enter_async_context(listening(*each)) for each in zip(apps, ports, strict=True)))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[0]}"))
        answer = await client.post("/v1/chat/completions", json=CHAT | {"model": "m", "stream": stream})
        assert answer.status_code == 400, answer.text
        assert f"has passed {MOST_GATEWAYS + 1} gateways" in answer.json()["error"]["message"]
        sent = 0.0
        for port in ports:
            text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            sent += sum(map(float, re.findall(r"(?m)^gw_upstream_attempts_total\S* (\S+)$", text)))
    assert sent == MOST_GATEWAYS + 1, "nothing is asked again on the way back"


async def test_a_server_learns_what_a_request_has_passed() -> None:
    """A line for each gateway like this one; other proxies' words stay here."""

    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if asked.line.startswith("GET ") else (WHOLE,)

    async with upstream(play) as there, running(create_app(parse(configured("openai", there.url)))) as client:
        for via in (None, "1.1 google", "1.1 google, 1.1 interlingua, 1.1 \xe9dge"):
            headers = {} if via is None else {"via": via.encode("latin-1")}
            answer = await client.post("/v1/chat/completions", json=CHAT | {"model": "m"}, headers=headers)
            assert answer.status_code == 200
        sent = [asked.headers["via"] for asked in there.asked if asked.line.startswith("POST")]
    assert sent == ["1.1 interlingua", "1.1 interlingua", "1.1 interlingua, 1.1 interlingua"]


def test_all_lines_of_the_header_count() -> None:
    lines = [(b"via", b"1.1 interlingua, 1.1 proxy"), (b"host", b"1.1 interlingua"), (b"via", b"1.1 interlingua")]
    assert gateways_passed(lines) == 2
