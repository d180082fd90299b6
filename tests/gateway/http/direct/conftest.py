"""Two gateways whose answers are to be the same, and how requests were begun."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.http.direct.request import DirectRequest
from gateway.http.request import RequestHandler
from tests.gateway.http.direct.gateways import gateway


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRECT_KEY", "secret")


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each request was begun, and those that went on in a task."""
    ways: list[str] = []
    send, hand_over, run = DirectRequest.send, DirectRequest.hand_over, RequestHandler.run

    def noted(way: str, method: Any) -> Any:
        def call(*given: Any) -> Any:
            ways.append(way)
            return method(*given)

        return call

    monkeypatch.setattr(DirectRequest, "send", noted("direct", send))
    monkeypatch.setattr(DirectRequest, "hand_over", noted("handed over", hand_over))
    monkeypatch.setattr(RequestHandler, "run", noted("task", run))
    return ways


@pytest.fixture(scope="module")
def both() -> Iterator[Any]:
    """A gateway as it is and one whose requests all have tasks, with what runs them."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("DIRECT_KEY", "secret")
        stack = AsyncExitStack()
        gateways = [runner.run(stack.enter_async_context(gateway())) for _ in range(2)]
        gateways[1].app.asgi_handler.lane = lambda _: None  # type: ignore[union-attr]
        yield runner, gateways
        runner.run(stack.aclose())
