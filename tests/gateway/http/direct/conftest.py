"""Two gateways whose answers are to be the same, and how requests were begun."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import repeat
from typing import Any

import pytest

from backends import cohorts
from backends.remote import direct_stream, servers
from backends.transport.outbox import Relay, plain
from gateway.http.direct import lane
from gateway.http.request import RequestHandler
from gateway.observability import request_log
from tests.gateway.http.direct.gateways import ARMS, ONE, gateway
from tests.gateway.serving import override


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRECT_KEY", "secret")
    monkeypatch.setattr(request_log, "MOST_A_SECOND", 1 << 30)  # each request's entry is looked at


@pytest.fixture
def in_cohorts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have single requests wait for the others of their turn, too."""
    monkeypatch.setattr(cohorts, "FEW", 0)


@pytest.fixture(params=["at once", "in cohorts"])
def both_ways(request: pytest.FixtureRequest) -> None:
    """Run a test twice."""
    if request.param == "in cohorts":
        request.getfixturevalue("in_cohorts")


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each request was begun, and those that went on in a task."""
    ways: list[str] = []
    run = RequestHandler.run

    def noted(way: str) -> Any:
        return lambda method, *given: (ways.append(way), method(*given))[1]

    for name in ("DirectRequest", "StreamedRequest"):
        override(monkeypatch, lane, name, hear=noted("direct"), hand_over=noted("handed over"))
    monkeypatch.setattr(RequestHandler, "run", lambda *given: noted("task")(run, *given))
    return ways


@pytest.fixture(
    scope="module",
    params=[{"served": ONE}, {"served": ARMS}, {"hosts": ("127.0.0.1", "localhost"), "routing": "least"}],
    ids=["one served entity", "an experiment", "two servers"],
)
def both(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A gateway as it is and one whose requests all have tasks, with what runs them."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("DIRECT_KEY", "secret")
        patch.setattr(servers, "draws", lambda _: repeat(0.0))  # the first of servers that have as much
        stack = AsyncExitStack()
        gateways = [runner.run(stack.enter_async_context(gateway(**request.param))) for _ in range(2)]
        gateways[1].app.asgi_handler.lane = lambda _: None  # type: ignore[union-attr]
        yield runner, gateways
        runner.run(stack.aclose())


@pytest.fixture(params=[Relay, plain.Relay], ids=["as installed", "in Python"])
def relayed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The reads that were relayed: as they came, or in the client's protocol."""
    found: list[bytes] = []

    class Noted:
        def __init__(self, *given: Any) -> None:
            self._relay = request.param(*given)
            self.end = self._relay.end

        def __call__(self, data: bytes) -> bool:
            taken = self._relay(data)
            found.extend([data] if taken else [])
            return taken

    monkeypatch.setattr(direct_stream, "Relay", Noted)
    return found
