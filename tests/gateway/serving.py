"""A gateway over scripted models, in this process: as an application, or behind uvicorn on a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import httpx
import pytest
import uvicorn
from litestar import Litestar

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import Config, Endpoint, Fallback, ServedEntity, ServerSection
from gateway.process.worker import uvicorn_config
from gateway.routing.assignment import assign

MESSAGES = [{"role": "user", "content": "Hi"}]
HALF = {"a": 50.0, "b": 50.0}


def config(*models: str, server: ServerSection | None = None) -> Config:
    """Endpoints named like the scripted models that answer them."""
    endpoints = {
        name: Endpoint(served_entities=(ServedEntity(name=f"{name}-1", backend="s", model=name),)) for name in models
    }
    return Config(server=server or ServerSection(), backends={"s": {"kind": "scripted"}}, endpoints=endpoints)


@asynccontextmanager
async def running(app: Litestar, url: str = "http://localhost") -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, without sockets."""
    async with app.lifespan():
        await ready(app)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=url) as client:
            yield client


@asynccontextmanager
async def listening(app: Litestar, port: int = 0) -> AsyncIterator[int]:
    """The application behind uvicorn; yields its port."""
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # else asyncio leaves Nagle on, 40 ms an answer
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    settings = uvicorn_config(app, app.state.service.config.server)
    server = uvicorn.Server(settings)
    serving = asyncio.create_task(server._serve([listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    await ready(app)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def ready(app: Litestar) -> None:
    """Return once every endpoint has somebody to answer."""
    while app.state.service.health.status != "ready":  # noqa: ASYNC110 - a poll is what health is for
        await asyncio.sleep(0.005)


def scripted(*models: str, server: ServerSection | None = None) -> tuple[Litestar, ScriptedBackend]:
    """An application and the one backend behind it."""
    backend = ScriptedBackend("s")
    return create_app(config(*models, server=server), {"s": backend}), backend


def endpoint(*arms: tuple[str, str, int], fallback: bool = True, backend: str = "s") -> Endpoint:
    """Arms as (name, model, share)."""
    entities = tuple(
        ServedEntity(name=name, backend=backend, model=model, traffic_percentage=share) for name, model, share in arms
    )
    return Endpoint(served_entities=entities, fallback=Fallback(enabled=fallback))


def application(**endpoints: Endpoint) -> Litestar:
    return create_app(Config(backends={"s": {"kind": "scripted"}}, endpoints=endpoints), {"s": ScriptedBackend("s")})


def unit_for(arm: str, name: str = "chat", weights: dict[str, float] = HALF) -> str:
    return next(unit for unit in map(str, range(1000)) if assign(name, weights, unit) == arm)


async def chat(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={"model": "chat", "messages": MESSAGES} | fields)


async def figures(client: httpx.AsyncClient) -> dict[str, Any]:
    """The report of the endpoint "chat" by arm."""
    answer = await client.get("/serving-endpoints/chat/experiment")
    assert answer.status_code == 200
    return {arm["name"]: arm for arm in answer.json()["arms"]}


PAIR = endpoint(("a", "scripted", 50), ("b", "scripted", 50))
"""Two arms that answer alike."""


def override(patch: pytest.MonkeyPatch, where: ModuleType, name: str, **methods: Callable[..., Any]) -> None:
    """Have a module make objects of one of its classes with other methods, which get the class's own first.

    By a subclass, as the classes of compiled modules cannot be changed.
    """
    kind = getattr(where, name)
    patch.setattr(
        where, name, type(name, (kind,), {each: _with(getattr(kind, each), methods[each]) for each in methods})
    )


def _with(own: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: method(own, *given)
