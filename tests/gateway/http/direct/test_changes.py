"""What changes while a request without a task is on its way, or fails before it is sent, harms no other one."""

from __future__ import annotations

import asyncio
import json
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from backends.transport import pool
from backends.transport.connection import Connection
from gateway import app as app_module
from gateway.access import keys as keys_module
from gateway.config import EndpointLimit
from gateway.http.direct import lane
from schemas.errors import InternalError, Unauthorized
from tests.faults.upstream import END, STREAM, Hang, Wait, chunk, response
from tests.gateway.http.direct.clients import CHAT, CHATS
from tests.gateway.http.direct.gateways import gateway, warm
from tests.gateway.http.direct.test_lane import PLAYS, hung
from tests.gateway.http.direct.test_stream import ASKED, ENDING, ROLE, streaming, texts
from tests.gateway.serving import override

pytestmark = pytest.mark.usefixtures("both_ways")


async def test_a_request_that_goes_on_in_a_task_keeps_its_key_and_plan(
    monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    """Also if its key is revoked meanwhile and its endpoint deleted: the server has done the work."""
    async with gateway() as there:
        service, answered = there.app.state.service, asyncio.Event()
        reader, writer = await hung(there, Wait(answered), *PLAYS["calls"])
        monkeypatch.setattr(service._live, "deployments", {})
        service._serve()

        def check(*_: Any) -> None:
            raise Unauthorized("It is revoked.")

        monkeypatch.setattr(service, "keys", SimpleNamespace(required=True, check=check))
        answered.set()
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        await there.settled()
        assert len([each for each in there.there.asked if each.line.startswith("POST ")]) == 1, "asked once"
    assert tasks[1:] == ["direct", "handed over", "task"]


async def test_a_failure_before_a_request_is_sent_is_an_error_and_harms_no_other(
    monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    failing: list[bool] = []

    def refresh(own: Any, worker: Any) -> None:
        if failing:
            raise InternalError
        own(worker)

    override(monkeypatch, app_module, "Service", refresh=refresh)
    async with gateway() as there:
        service = there.app.state.service
        await warm(there)
        monkeypatch.setattr(service, "is_changeable", True)
        failing.append(True)
        answers = await asyncio.gather(*(there.client.post("/v1/chat/completions", json=CHAT) for _ in range(6)))
        assert [each.status_code for each in answers] == [500] * 6
        failing.clear()
        await warm(there)
        await there.settled()
        assert service.running == 0


async def test_a_stream_behind_an_answer_that_nobody_reads_waits_for_the_client(
    monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    """The client pipelines both, so that its connection is full before the stream begins."""
    paused = asyncio.Event()
    received = 0

    def heard(own: Any, connection: Connection, data: bytes) -> None:
        nonlocal received
        received += len(data)
        own(connection, data)

    override(monkeypatch, lane, "StreamedRequest", pause=lambda own, each: (paused.set(), own(each))[1])
    override(monkeypatch, pool, "Connection", data_received=heard)
    words = texts(*(f"{number:06d}" * 200 for number in range(40_000)))
    async with gateway(timeouts={"idle": 20}) as there:
        await warm(there)
        there.steps[:] = [
            (response(CHATS.answer(**CHATS.whole("x" * 6_000_000))),),
            (STREAM + chunk(ROLE), *map(chunk, words), b"".join(map(chunk, ENDING)) + END),
        ]
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", there.port))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer secret\r\n"
        bodies = [json.dumps(each).encode() for each in (CHAT, ASKED)]
        asked = b"".join(head + b"content-length: %d\r\n\r\n%b" % (len(each), each) for each in bodies)
        await asyncio.get_running_loop().sock_sendall(client, asked)
        async with asyncio.timeout(30):
            await paused.wait()
        await asyncio.sleep(0.5)
        assert received < 30_000_000, "of 54 MB: what the buffers of the kernel take"
        client.close()


async def test_a_client_that_leaves_its_stream_makes_room_at_once(
    monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    monkeypatch.setattr(keys_module, "_BETWEEN_LOOKS", 0.0)
    async with gateway(EndpointLimit(per="endpoint", concurrent=1)) as there:
        _, writer = await streaming(there, Hang())
        assert (await there.client.post("/v1/chat/completions", json=CHAT)).status_code == 429
        # What is done some milliseconds later is not waited for.
        monkeypatch.setattr(there.app.state.service.ended, "add", lambda *_, **__: None)
        writer.close()
        await there.settled()
        assert (await there.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
