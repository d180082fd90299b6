"""Routes outside every protocol; dialects by mount, port and option; limits of a request."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from gateway.config import Listener, Mount, ServerSection
from tests.gateway.serving import listening, running, scripted

CHAT = {"model": "echo", "messages": [{"role": "user", "content": "one two three"}]}


@pytest.mark.slow
async def test_health() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        for path in ("/", "/health", "/ping", "/health/ready"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/health/ready")).json() == {"status": "ready", "detail": ""}
        app.state.service.draining = True
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/health/ready")).status_code == 503


@pytest.mark.slow
async def test_metrics_count_requests_and_tokens() -> None:
    app, _ = scripted("echo", "error")
    async with running(app) as client:
        await client.post("/v1/chat/completions", json=CHAT)
        await client.post("/v1/chat/completions", json=CHAT | {"model": "error"})
        text = (await client.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("gw_requests_total{")]
    assert any('outcome="ok"' in line and line.endswith(" 1.0") for line in lines), lines
    assert any('outcome="backend_failed"' in line and line.endswith(" 1.0") for line in lines), lines


@pytest.mark.slow
async def test_the_openapi_document_names_every_route() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        document = (await client.get("/openapi.json")).json()
    assert {
        "/generate",
        "/v1/chat/completions",
        "/serving-endpoints/{name}/invocations",
        "/v2/models/{model}/generate_stream",
    } <= set(document["paths"])
    for path, methods in document["paths"].items():
        for operation in methods.values():
            asked = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
            assert asked == set(re.findall(r"{(\w+)}", path)), path
    content = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/ChatCompletion"}
    assert content["text/event-stream"]["schema"] == {"type": "string"}  # and not one whole answer


@pytest.mark.slow
async def test_head_is_get_without_a_body() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        ours = ("/health", "/health/ready", "/metrics", "/ui", "/openapi.json")
        for path in ("/v1/models", "/info", "/v2/health/ready", "/nowhere", *ours):
            whole, head = await client.get(path), await client.head(path)
            assert head.status_code == whole.status_code
            assert head.content == b""
            assert head.headers["content-length"] == str(len(whole.content))


ANOTHER_METHOD = {("/v1/feedback", "GET"): "POST", ("/health", "POST"): "GET, HEAD", ("/ui/", "PUT"): "GET, HEAD"}


@pytest.mark.parametrize(("path", "method"), ANOTHER_METHOD)
async def test_a_405_lists_the_allowed_methods(path: str, method: str) -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        answer = await client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, ANOTHER_METHOD[path, method])


@pytest.mark.slow
async def test_feedback_that_is_too_large_gets_413() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        answer = await client.post(
            "/v1/feedback", content=b" " * 17_000_000, headers={"content-type": "application/json"}
        )
    assert answer.status_code == 413
    assert "larger than 16777216 bytes" in answer.json()["error"]["message"]


async def test_a_mount_has_its_own_dialects() -> None:
    server = ServerSection(mounts=(Mount("/mindie", {"tgi": "mindie", "openai": "mindie-openai"}),))
    app, _ = scripted("echo", server=server)
    async with running(app) as client:
        ours = (await client.post("/v1/chat/completions", content=b"{")).json()
        theirs = (await client.post("/mindie/v1/chat/completions", content=b"{")).json()
        assert set(ours) == {"error"}
        assert set(theirs) == {"error", "error_type"}
        assert (await client.post("/mindie", json={"inputs": "one two"})).status_code == 200
        endless = {"inputs": "one two", "parameters": {"max_new_tokens": 2**31 - 1}}
        assert (await client.post("/mindie/generate", json=endless)).status_code == 200
        assert (await client.post("/generate", json=endless)).status_code == 422


async def test_dialect_options_override_a_dialects_field() -> None:
    options = {"triton": {"malformed": "no: {reason}"}}
    app, _ = scripted("echo", server=ServerSection(dialect_options=options))
    async with running(app) as client:
        answer = await client.post("/v2/models/echo/generate", content=b"{")
        assert answer.json()["error"].startswith("no: ")


@pytest.mark.slow
async def test_a_listener_has_its_own_dialects() -> None:
    app, _ = scripted("echo")
    async with listening(app) as port:
        pass
    app, _ = scripted("echo", server=ServerSection(listeners=(Listener(port, {"openai": "mindie-openai"}),)))
    async with running(app, f"http://localhost:{port}") as client:
        assert set((await client.post("/v1/chat/completions", content=b"{")).json()) == {"error", "error_type"}
    async with running(app, "http://localhost:1") as client:
        assert set((await client.post("/v1/chat/completions", content=b"{")).json()) == {"error"}


async def test_more_choices_than_the_limit_are_rejected() -> None:
    app, _ = scripted("echo")
    async with running(app) as client:
        body = {"model": "echo", "prompt": ["x"] * 100, "n": 100}
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "n"


async def read_raw(port: int, model: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"text_input": "one two three"}).encode()
    path = f"/v2/models/{model}/generate_stream".encode()
    writer.write(b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body))
    data = b""
    while part := await asyncio.wait_for(reader.read(1000), 60):
        data += part
        if data.endswith(b"\r\n0\r\n\r\n"):
            break
    writer.close()
    return data


@pytest.mark.slow
@pytest.mark.parametrize("abort", [False, True])
async def test_a_failed_stream_ends_with_an_error_event_or_an_aborted_connection(abort: bool) -> None:
    options: dict[str, Any] = {"triton": {"abort_on_error": abort}}
    app, _ = scripted("error-after-2", server=ServerSection(dialect_options=options))
    async with listening(app) as port:
        data = await read_raw(port, "error-after-2")
    assert b'"error"' in data
    assert data.endswith(b"\r\n0\r\n\r\n") != abort


@pytest.mark.slow
async def test_requests_over_the_concurrency_limit_get_retry_after() -> None:
    from gateway.config import Limits

    app, _ = scripted("hang", "echo", server=ServerSection(limits=Limits(max_concurrent_requests=1)))
    async with running(app) as client:
        hanging = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | {"model": "hang"}))
        while app.state.service.running < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        refused: httpx.Response = await client.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code in (429, 503)
        assert refused.headers["retry-after"] == "1"
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "status"),
    [("error-before", 500), ("error-after-0", 500), ("truncate-after-0", 500), ("error-after-1", 200)],
)
async def test_the_first_part_of_tritons_stream_sets_the_status(model: str, status: int) -> None:
    app, _ = scripted(model)
    async with running(app) as client:
        answer = await client.post(f"/v2/models/{model}/generate_stream", json={"id": "1", "text_input": "x"})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.text.rpartition("data: ")[2].startswith('{"error":')


async def test_tgis_stream_begins_with_the_backends_first_event() -> None:
    app, _ = scripted("error-after-0")
    async with running(app) as client:
        answer = await client.post("/generate_stream", json={"inputs": "x"})
    assert (answer.status_code, answer.text[:13]) == (200, 'data: {"error')
