"""Answers of every kind of upstream, recorded from this gateway, to be replayed with faults."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from backends.remote import kinds
from backends.remote.backend import RemoteBackend
from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Mount, ServerSection
from schemas.errors import GatewayError
from schemas.ir import ChatPrompt, Event, Generate, Message, Sampling, Stopping, TextPrompt, Usage
from tests.adapters.cohere.server import CohereServer
from tests.faults.upstream import Asked, Play, Step, Upstream, response, upstream
from tests.gateway.serving import config, listening

KINDS = {
    "openai": kinds.openai,
    "openai-responses": kinds.openai_responses,
    "responses": kinds.responses,
    "mindie-openai": kinds.mindie_openai,
    "tgi": kinds.tgi,
    "tgi-0.9": kinds.tgi_09,
    "mindie": kinds.mindie,
    "triton": kinds.triton,
    "mindie-triton": kinds.mindie_triton,
    "databricks": kinds.databricks,
    "anthropic": kinds.anthropic,
    "gemini": kinds.gemini,
    "ollama": kinds.ollama,
    "cohere": kinds.cohere,
}
ANSWERED = [kind for kind in KINDS if kind != "cohere"]
"""Those whose protocol the gateway answers, too."""
MOUNTED = {
    "cohere": "/cohere",
    "openai": "/v1",
    "openai-responses": "/v1",
    "responses": "/v1",
    "gemini": "/v1beta",
    "mindie": "/mindie",
    "mindie-openai": "/mindie/v1",
    "mindie-triton": "/mindie",
    "tgi-0.9": "/old",
}
"""The path where a gateway configured like `SERVER` serves that kind."""

SERVER = ServerSection(
    mounts=(
        Mount(prefix="/mindie", dialects={"tgi": "mindie", "openai": "mindie-openai", "triton": "mindie-triton"}),
        Mount(prefix="/old", dialects={"tgi": "tgi-0.9"}),
    )
)
TEXT = "The quick brown fox jumps over the lazy dog. " * 2
MODEL = "fox"


def request(kind: str, *, stream: bool, id: str = "r") -> Generate:
    """A request that the kind can express, for an answer of about 20 tokens."""
    chat = kind.endswith(("openai", "responses")) or kind in ("anthropic", "cohere", "gemini")
    prompt = ChatPrompt((Message("user", "Say it."),)) if chat else TextPrompt("Say it.")
    limit = Stopping(max_new_tokens=100)
    return Generate(id=id, model=MODEL, prompts=(prompt,), stream=stream, sampling=Sampling(), stopping=limit)


_RECORDED: dict[tuple[str, bool], bytes] = {}


async def record(kind: str, *, stream: bool) -> bytes:
    """The body of the kind's answer to `request`; recorded once."""
    if (kind, stream) not in _RECORDED:
        _RECORDED[kind, stream] = await _record(kind, stream=stream)
    return _RECORDED[kind, stream]


async def _record(kind: str, *, stream: bool) -> bytes:
    backend = ScriptedBackend("s", {"scripts": {MODEL: {"texts": [TEXT]}}})
    app = CohereServer(create_app(config(MODEL, server=SERVER), {"s": backend}), backend, MOUNTED["cohere"])
    async with listening(app) as port, remote(kind, f"http://127.0.0.1:{port}{MOUNTED.get(kind, '')}") as there:
        _, outbound = there._encode(request(kind, stream=stream))
        assert there._connected is not None
        answer = await there._connected.requests.exchange(outbound)
        try:
            return (await answer.reply(None)).body
        finally:
            answer.close()


def frames(body: bytes) -> list[bytes]:
    """The events of a stream, as bytes."""
    # Ollama's are lines of JSON.
    return re.findall(rb"\{[^\n]*\n|.*?\n\n", body, re.DOTALL)


def is_end(frame: bytes) -> bool:
    """Whether an event holds a finish reason, in the protocol of any kind, or is an end itself."""
    reason = rb'"(?:(?:finish|stop|done)_r|finishR)eason": ?"(?!None")'
    return re.search(reason + rb'|"type": ?"response\.(?:completed|incomplete)"', frame) is not None


@asynccontextmanager
async def remote(kind: str, url: str, **options: Any) -> AsyncIterator[RemoteBackend]:
    """A started backend of that kind, with a connect timeout for busy machines."""
    timeouts = {"connect": 60.0} | options.pop("timeouts", {})
    backend = KINDS[kind]("remote", {"url": url, "health_interval": 3600.0, "timeouts": timeouts} | options)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.aclose()


@asynccontextmanager
async def playing(kind: str, play: Play, **options: Any) -> AsyncIterator[tuple[RemoteBackend, Upstream]]:
    """A backend in front of an upstream that answers GETs, and plays `play` to all other requests."""

    def answer(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if asked.line.startswith("GET ") else play(asked)

    async with upstream(answer) as there, remote(kind, there.url, **options) as backend:
        yield backend, there


async def ask(backend: RemoteBackend, wanted: Generate) -> tuple[tuple[Event, ...], GatewayError | None]:
    """All events, and the error if there was one. Asserts that a stream has either its `Usage` or an error."""
    events: list[Event] = []
    error: GatewayError | None = None
    async with aclosing(backend.generate(wanted)) as stream:
        try:
            async for batch in stream:
                assert batch
                events.extend(batch)
        except GatewayError as raised:
            error = raised
    whole = bool(events) and isinstance(events[-1], Usage)
    assert whole == (error is None), "a stream is complete or raises"
    return tuple(events), error


def text_of(events: tuple[Event, ...]) -> str:
    """The concatenated text."""
    return "".join(getattr(event, "text", "") for event in events)
