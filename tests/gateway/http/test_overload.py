"""Refusals under load come before the body; a client's own deadline is kept; keys share the places."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from gateway.config import Limits, ServerSection
from tests.gateway.serving import application, endpoint, figures, listening, running, scripted, unit_for

CHAT = "/v1/chat/completions"


def body(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}]} | fields


def connected(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)


@pytest.mark.slow
async def test_a_full_server_refuses_before_it_has_the_body() -> None:
    app, _ = scripted("hang", server=ServerSection(limits=Limits(max_concurrent_requests=1)))
    async with listening(app) as port, connected(port) as client:
        first = asyncio.create_task(client.post(CHAT, json=body("hang")))
        while app.state.service.running != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{" % CHAT.encode())
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).lower()
        assert head.startswith(b"http/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in head
        writer.close()
        assert (await client.get("/v1/models")).status_code == 200
        first.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_client_no_longer_waits_for_is_not_generated(stream: bool) -> None:
    app, backend = scripted("hang", "echo")
    async with running(app) as client:
        late = await client.post(CHAT, json=body("hang", stream=stream), headers={"x-request-timeout": "0.1"})
        assert late.status_code == 504
        assert backend.active == 0
        good = await client.post(CHAT, json=body("echo", stream=stream), headers={"x-request-timeout": "60"})
        assert good.status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_in_a_hurry_is_no_failure_of_its_arm(stream: bool) -> None:
    app = application(chat=endpoint(("a", "hang", 50), ("b", "echo", 50)))
    asked = body("chat", stream=stream) | {"user": unit_for("a")}
    async with running(app) as client:
        late = await client.post(CHAT, json=asked, headers={"x-request-timeout": "0.1"})
        assert late.status_code == 504
        means = (await figures(client))["a"]["means"]
        served = (await client.get("/metrics")).text
    assert (means["abandoned"], means.get("success"), means["refused"]) == (1.0, None, 0.0)
    assert means["latency"] >= 0.1
    assert 'outcome="timeout"' in served


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf"])
async def test_a_deadline_is_a_number_of_seconds(value: str) -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        answer = await client.post(CHAT, json=body("echo"), headers={"x-request-timeout": value})
    assert answer.status_code == 400


@pytest.mark.slow
async def test_under_load_no_key_takes_the_places_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "greedy,modest")
    server = ServerSection(keys_env="KEYS", limits=Limits(max_concurrent_requests=8))
    app, _ = scripted("hang", "echo", server=server)
    async with listening(app) as port, connected(port) as client:
        greedy, modest = {"authorization": "Bearer greedy"}, {"authorization": "Bearer modest"}
        asked = [asyncio.create_task(client.post(CHAT, json=body("hang"), headers=greedy)) for _ in range(20)]
        while sum(each.done() for each in asked) < 13:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert {each.result().status_code for each in asked if each.done()} == {429}
        assert (await client.post(CHAT, json=body("echo"), headers=modest)).status_code == 200
        for each in asked:
            each.cancel()
