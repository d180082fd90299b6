"""The log line `request.finished` says how a request ended, and where it was cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from litestar import Litestar
from structlog.testing import capture_logs

from backends.base import Health
from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Config, Endpoint, Limits, ServedEntity, ServerSection
from tests.gateway.serving import MESSAGES, application, endpoint, listening, running, scripted

CHAT = {"model": "echo", "messages": MESSAGES}
PATH = "/v1/chat/completions"


@asynccontextmanager
async def logged(app: Litestar) -> AsyncIterator[tuple[httpx.AsyncClient, list[dict[str, Any]]]]:
    """A client, and the lines `request.finished` of what it asks."""
    lines: list[dict[str, Any]] = []
    async with running(app) as client:
        with capture_logs() as entries:
            yield client, lines
        lines += [entry for entry in entries if entry["event"] == "request.finished"]


def cut(lines: list[dict[str, Any]]) -> tuple[str, str | None, list[str]]:
    """Outcome, stage and finish reasons of the only request."""
    (line,) = lines
    return line["outcome"], line["stage"], line["finish_reason"]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_answer_has_all_finish_reasons_and_no_stage(stream: bool) -> None:
    async with logged(scripted("echo")[0]) as (client, lines):
        asked = CHAT | {"stream": stream, "n": 2, "max_completion_tokens": 1}
        await client.post(PATH, json=asked | {"messages": [{"role": "user", "content": "one two three"}]})
    assert cut(lines) == ("ok", None, ["length", "length"])


async def test_a_request_that_generates_nothing_has_no_finish_reason() -> None:
    async with logged(scripted("echo")[0]) as (client, lines):
        await client.get("/v1/models")
    assert cut(lines) == ("ok", None, [])


BEFORE_THE_FIRST_EVENT: dict[str, tuple[dict[str, Any], str, str]] = {
    "no JSON": ({"content": b"{"}, "malformed_body", "decode"),
    "a field of the wrong type": ({"json": CHAT | {"n": "x"}}, "invalid_request", "decode"),
    "a form": ({"files": {"a": b""}}, "unsupported_media_type", "read"),
    "too large": ({"content": b" " * 2000}, "body_too_large", "read"),
    "an unknown model": ({"json": CHAT | {"model": "absent"}}, "model_not_found", "route"),
    "an upstream error": ({"json": CHAT | {"model": "error"}}, "backend_failed", "generate"),
    "no first event in time": ({"json": CHAT | {"model": "timeout"}}, "timeout", "generate"),
    "cut before the first event": ({"json": CHAT | {"model": "truncate-before"}}, "incomplete", "generate"),
    "a bug": ({"json": CHAT | {"model": "crash"}}, "internal", "generate"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BEFORE_THE_FIRST_EVENT)
async def test_where_a_request_fails_before_the_first_event(case: str) -> None:
    sent, outcome, stage = BEFORE_THE_FIRST_EVENT[case]
    server = ServerSection(limits=Limits(max_body=1000, max_image_body=1000))
    app, _ = scripted("echo", "error", "timeout", "truncate-before", "crash", server=server)
    async with logged(app) as (client, lines):
        await client.post(PATH, **sent)
    assert cut(lines) == (outcome, stage, [])


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("model", "outcome"), [("error-after-2", "backend_failed"), ("truncate-after-2", "incomplete")]
)
async def test_where_an_answer_is_cut_after_the_first_event(model: str, outcome: str, stream: bool) -> None:
    async with logged(scripted(model)[0]) as (client, lines):
        await client.post(PATH, json=CHAT | {"model": model, "stream": stream})
    assert cut(lines) == (outcome, "stream", [])


async def test_a_wrong_key_fails_while_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEYS", "right")
    async with logged(scripted("echo", server=ServerSection(keys_env="THE_KEYS"))[0]) as (client, lines):
        await client.post(PATH, json=CHAT)
    assert cut(lines) == ("unauthorized", "read", [])


async def test_a_listing_of_what_is_not_there_fails_at_describe() -> None:
    async with logged(scripted("echo")[0]) as (client, lines):
        await client.get("/v1/models/absent")
    assert cut(lines) == ("model_not_found", "describe", [])


async def test_a_change_that_is_refused_fails_at_manage(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("ADMIN_KEYS", "root")
    server = ServerSection(admin_keys_env="ADMIN_KEYS", state_file=str(tmp_path / "state.json"))
    async with logged(scripted("echo", server=server)[0]) as (client, lines):
        headers = {"authorization": "Bearer root"}
        await client.delete("/api/2.0/serving-endpoints/absent", headers=headers)
    assert cut(lines) == ("model_not_found", "manage", [])


@pytest.mark.slow
async def test_a_backend_that_cannot_be_reached_fails_at_wait() -> None:
    app, backend = scripted("echo")
    async with logged(app) as (client, lines):
        backend.health = Health("failed")
        await app.state.service._check_health()
        await client.post(PATH, json=CHAT)
    assert cut(lines) == ("backend_unavailable", "wait", [])


async def test_of_several_failures_the_stage_is_that_of_the_one_that_is_sent() -> None:
    backends = {"s": ScriptedBackend("s"), "t": ScriptedBackend("t", {"features": []})}
    arms = (
        ServedEntity(name="a", backend="s", model="error"),
        ServedEntity(name="b", backend="t", model="echo", traffic_percentage=0),
    )
    kinds = {name: {"kind": "scripted"} for name in backends}
    config = Config(backends=kinds, endpoints={"chat": Endpoint(served_entities=arms)})
    app = create_app(config, backends)
    async with logged(app) as (client, lines):
        backends["s"].health = Health("failed")
        await app.state.service._check_health()
        await client.post(PATH, json=CHAT | {"model": "chat"})
    assert cut(lines) == ("backend_unavailable", "wait", [])  # that `b` cannot chat is not what went wrong
    assert lines[0]["served"] == "a"  # nor was `b` asked


class Connection:
    """A client of the bare ASGI application that sends one chat, and then does as it is bidden."""

    def __init__(self, app: Litestar, body: dict[str, Any], accepts: int = 10**9) -> None:
        self._app = app
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._messages.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
        self._accepts = accepts
        self.sent = 0

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})

    async def ask(self) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": PATH,
            "raw_path": PATH.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await self._app(scope, self._messages.get, self._send)  # type: ignore[arg-type]

    async def _send(self, message: Any) -> None:
        self.sent += 1
        if self.sent > self._accepts:
            await asyncio.Event().wait()  # its buffers are full


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to hold")


LEAVES: dict[str, tuple[dict[str, Any], int, int, str]] = {
    # what is asked, messages that the client accepts, messages after which it leaves, the stage
    "before the first event": ({"model": "hang"}, 99, 0, "generate"),
    "whole, after the first event": ({"model": "hang-after-2"}, 99, 0, "stream"),
    "streamed, after the first event": ({"model": "hang-after-2", "stream": True}, 99, 3, "stream"),
    "with full buffers": ({"model": "echo", "stream": True}, 1, 2, "send"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LEAVES)
async def test_where_a_client_left(case: str) -> None:
    asked, accepts, after, stage = LEAVES[case]
    app, backend = scripted("hang", "hang-after-2", "echo")
    async with logged(app) as (_, lines):
        client = Connection(app, CHAT | asked, accepts)
        asking = asyncio.create_task(client.ask())
        await until(lambda: client.sent >= after and backend.active == 1)
        await asyncio.sleep(0.05)
        client.leave()
        await asking
    outcome, where, _ = cut(lines)
    assert (outcome, where) == ("client_gone", stage)


@pytest.mark.slow
async def test_a_request_that_the_server_cancels_is_no_client_that_left() -> None:
    app, backend = scripted("hang")
    async with logged(app) as (_, lines):
        asking = asyncio.create_task(Connection(app, CHAT | {"model": "hang"}).ask())
        await until(lambda: backend.active == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert cut(lines) == ("cancelled", "generate", [])


@pytest.mark.slow
async def test_a_body_that_does_not_arrive_is_cut_while_reading() -> None:
    app, _ = scripted("echo", server=ServerSection(limits=Limits(body_idle=0.05)))
    async with listening(app) as port:
        with capture_logs() as entries:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{" % PATH.encode())
            assert b" 408 " in await asyncio.wait_for(reader.readline(), 60)
            await until(lambda: any(entry["event"] == "request.finished" for entry in entries))
            writer.close()
    assert cut([entry for entry in entries if entry["event"] == "request.finished"]) == ("request_timeout", "read", [])


@pytest.mark.slow
async def test_an_assigned_request_names_the_source_of_its_unit() -> None:
    app = application(chat=endpoint(("a", "echo", 50), ("b", "echo", 50)), alone=endpoint(("a", "echo", 100)))
    async with logged(app) as (client, lines):
        for model in ("chat", "chat:a", "alone"):
            await client.post(PATH, json=CHAT | {"model": model, "user": "somebody"})
    assert [line["unit"] for line in lines] == ["user", None, None]
