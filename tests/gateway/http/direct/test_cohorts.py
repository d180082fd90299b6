"""Requests that wait for the others of their turn, and what may happen to them before their steps are taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from backends import cohorts
from backends.cohorts import Cohorts, Steps
from gateway.server import client_connection
from tests.faults.upstream import Hang, Wait, response
from tests.gateway.http.direct.clients import CHAT
from tests.gateway.http.direct.gateways import WHOLE, Gateway, gateway, warm
from tests.gateway.http.direct.test_servers import servers
from tests.gateway.http.direct.test_stream import STEPS, WORDS
from tests.gateway.serving import override

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer secret\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
)
REQUEST, STREAMED = (
    HEAD % (len(body), body.encode()) for body in (json.dumps(CHAT), json.dumps(CHAT | {"stream": True}))
)
WHATS = pytest.mark.parametrize("what", ["begin", "_answer"])
REQUESTS = pytest.mark.parametrize("request_", [REQUEST, STREAMED], ids=["whole", "streamed"])

pytestmark = pytest.mark.usefixtures("in_cohorts")


@pytest.fixture(autouse=True)
async def _nothing_fails() -> AsyncIterator[None]:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    yield
    assert failures == []


@pytest.fixture
def happens(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[Any], object]]:
    """What happens once, to a client's connection, when its request ("begin") or its answer ("_answer") waits."""
    planned: dict[str, Callable[[Any], object]] = {}
    connections: list[Any] = []

    class Watched(Cohorts):
        def join(self, steps: Steps) -> None:
            super().join(steps)
            if (event := planned.pop(steps.__name__, None)) is not None:  # type: ignore[attr-defined]  # of all generators
                event(connections[-1])

    def begin(own: Any, way: Any, *given: Any) -> Any:
        connections.append(way._connection)
        return own(way, *given)

    monkeypatch.setattr(cohorts, "Cohorts", Watched)
    override(monkeypatch, client_connection, "DirectWay", begin=begin)
    return planned


async def asked(there: Gateway, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    there.there.asked.clear()
    there.steps[:] = [STEPS if request is STREAMED else (response(WHOLE),)]
    reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
    writer.write(request)
    return reader, writer


@WHATS
@REQUESTS
async def test_a_server_that_stops_answers_what_waits(
    what: str, request_: bytes, happens: dict[str, Callable[[Any], object]], tasks: list[str]
) -> None:
    async with gateway() as there:
        await warm(there)
        happens[what] = lambda connection: connection.shutdown()
        reader, writer = await asked(there, request_)
        answer = await reader.read()
        writer.close()
        assert len(there.there.asked) == 1
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"\r\nconnection: close\r\n" in answer
    assert (
        [answer.count(word) for word in WORDS] == [1] * len(WORDS) if request_ is STREAMED else answer.endswith(WHOLE)
    )
    assert tasks[1:] == (["task"] if what == "begin" else ["direct", "handed over", "task"])


@WHATS
@REQUESTS
async def test_a_client_that_leaves_has_its_request_cancelled(
    what: str, request_: bytes, happens: dict[str, Callable[[Any], object]]
) -> None:
    def leave(connection: Any) -> None:
        connection.connection_lost(None)
        connection.transport.abort()

    async with gateway() as there:
        await warm(there)
        happens[what] = leave
        with capture_logs() as logs:
            _, writer = await asked(there, request_)
            while not any(each["event"] == "request.finished" for each in logs):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
            writer.close()
            await there.settled()
        assert [each["outcome"] for each in logs if each["event"] == "request.finished"] == ["client_gone"]
        assert there.app.state.service.running == 0
        there.steps.clear()
        await warm(there)


@WHATS
async def test_the_next_request_comes_while_one_waits(
    what: str, happens: dict[str, Callable[[Any], object]], tasks: list[str]
) -> None:
    async with gateway() as there:
        await warm(there)
        happens[what] = lambda connection: connection.data_received(REQUEST)
        reader, writer = await asked(there, REQUEST)
        for _ in range(2):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
            assert await reader.readexactly(len(WHOLE)) == WHOLE
        writer.close()
    assert tasks[1:] == ["direct", "direct"]


async def test_no_more_begin_together_than_may_run(tasks: list[str]) -> None:
    async with gateway() as there:
        await warm(there)
        service, event = there.app.state.service, asyncio.Event()
        there.steps[:] = [(Wait(event), response(WHOLE))] * 2
        opened = [await asyncio.open_connection("127.0.0.1", there.port) for _ in range(6)]
        others = service.limits.max_concurrent_requests - 2
        service.running += others
        for _, writer in opened:  # in one turn
            writer.write(REQUEST)
        heads = [asyncio.ensure_future(reader.readline()) for reader, _ in opened]
        while sum(head.done() for head in heads) < 4:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
        event.set()
        lines = await asyncio.gather(*heads)
        service.running -= others
        for _, writer in opened:
            writer.close()
        await there.settled()
    assert sorted(line.split()[1] for line in lines) == [b"200"] * 2 + [b"503"] * 4
    assert sorted(tasks[1:]) == ["direct"] * 2 + ["task"] * 4


async def test_requests_that_begin_together_go_to_several_servers() -> None:
    async with servers((Hang(),), (Hang(),)) as there:
        url = there.client.base_url
        opened = [await asyncio.open_connection(url.host, url.port) for _ in range(6)]
        for _, writer in opened:  # in one turn
            writer.write(REQUEST)
        while sum(there.asked) < 6:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
        assert there.asked == there.loads == [3, 3]
        for _, writer in opened:
            writer.close()
