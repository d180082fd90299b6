"""The one stream of a tab."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.gateway.serving import listening, scripted


async def lines(client: httpx.AsyncClient, url: str) -> AsyncIterator[str]:
    async with client.stream("GET", url) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            yield line


@pytest.mark.slow
async def test_a_tab_learns_of_changes_and_ends_with_the_server() -> None:
    app, backend = scripted("echo")
    async with httpx.AsyncClient(timeout=20) as client, listening(app) as port:
        events = lines(client, f"http://127.0.0.1:{port}/v1/console/events")
        assert await anext(events) == "event: changed"
        before = await anext(events)
        backend.health = type(backend.health)("failed", "gone")
        async with asyncio.timeout(10):
            while not (line := await anext(events)).startswith("data: "):
                pass
        assert line > before
        app.state.service.draining = True
        async with asyncio.timeout(10):
            assert not [line async for line in events if line.startswith("event")]
