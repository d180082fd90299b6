"""Back-pressure: while a client takes nothing, its backend is asked for nothing more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.http.client import FLOW_EXTENSION
from schemas.ir import Events, Generate
from tests.gateway.serving import MESSAGES, config, ready

BODY = json.dumps({"model": "long", "messages": MESSAGES, "stream": True, "max_tokens": 50}).encode()


class CountingBackend(ScriptedBackend):
    """Counts the batches that it was asked for."""

    batches = 0

    async def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        async for batch in super().generate(request):
            self.batches += 1
            yield batch


class Connection:
    """A client's connection whose buffer is full from the first part of the body on, until it is drained."""

    gathers = False

    def __init__(self, body: bytes) -> None:
        self.write_paused = False
        self.sent: list[bytes] = []
        self.full, self.drained = asyncio.Event(), asyncio.Event()
        self._body = body

    async def receive(self) -> dict[str, Any]:
        if self._body:
            body, self._body = self._body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        return await asyncio.get_running_loop().create_future()  # the client stays

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            if self.write_paused:  # as servers do
                await self.drained.wait()
            self.sent.append(message["body"])
            self.write_paused = not self.drained.is_set()
            self.full.set()

    async def drain(self) -> None:
        await self.drained.wait()
        self.write_paused = False


def scope_of(connection: Connection) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "server": ("127.0.0.1", 80),
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "extensions": {FLOW_EXTENSION: {"flow": connection}},
    }


async def test_no_batch_is_made_while_the_client_takes_none() -> None:
    backend = CountingBackend("s", {"scripts": {"long": {"texts": ["word "], "repeat": 50}}})
    app = create_app(config("long"), {"s": backend})
    connection = Connection(BODY)
    async with app.lifespan():
        await ready(app)
        asked = asyncio.create_task(app(scope_of(connection), connection.receive, connection.send))  # type: ignore[arg-type]
        await connection.full.wait()
        before = backend.batches
        await asyncio.sleep(0.1)
        assert backend.batches == before < 10
        connection.drained.set()
        await asked
    assert backend.batches > 50
    assert b"".join(connection.sent).endswith(b"data: [DONE]\n\n")


async def test_a_server_that_stops_waits_for_no_client_that_takes_nothing() -> None:
    """Its request is counted before the metrics are closed."""
    app = create_app(
        config("long"), {"s": CountingBackend("s", {"scripts": {"long": {"texts": ["word "], "repeat": 50}}})}
    )
    connection = Connection(BODY)
    async with app.lifespan():
        await ready(app)
        asked = asyncio.create_task(app(scope_of(connection), connection.receive, connection.send))  # type: ignore[arg-type]
        await connection.full.wait()
        await asyncio.sleep(0.01)
        app.state.service.draining = True
        asked.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait([asked])
        totals = app.state.service.metrics.totals()["gw_requests"]
    assert [labels[-1] for labels in totals] == ["cancelled"]
