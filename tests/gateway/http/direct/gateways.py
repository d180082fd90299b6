"""A gateway in front of a scripted upstream, with all that can be seen of what it does."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from litestar import Litestar
from structlog.testing import capture_logs

from backends.remote.backend import RemoteBackend
from backends.remote.servers import RemoteServers
from gateway import app as app_module
from gateway.app import create_app
from gateway.config import Config, Endpoint, EndpointLimit, Experiment, ServedEntity, ServerSection
from gateway.config.server import Mount
from gateway.experiments.request_counts import ROWS
from gateway.service import Service
from tests.faults.recorded import KINDS
from tests.faults.upstream import Asked, Step, Upstream, response, upstream
from tests.gateway.http.direct.clients import CHAT, CHATS, Request
from tests.gateway.serving import listening, override

WHOLE = CHATS.answer()
_TIMES = re.compile(r"(x-(compute|total|inference)-time|x-time-per-token|.*-reset(-.*)?|x-request-id|date)")
"""Headers that differ between two answers to the same request."""
_CREATED = re.compile(rb'"created": ?\d{5,}')
_SEED = re.compile(rb'"seed":\d{8,}')


class Gateway:
    """A gateway in front of an upstream that plays what a turn wants, once, and then answers whole.

    `backends` has one for each name of the upstream's host, `backend` is the first.
    """

    def __init__(self, app: Litestar, backends: list[RemoteBackend], there: Upstream, port: int) -> None:
        self.app, self.backends, self.there = app, backends, there
        self.backend = backends[0]
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)
        self.client.headers["authorization"] = "Bearer secret"
        self.port = port
        self.steps: list[tuple[Step, ...]] = []

    def play(self, asked: Asked) -> tuple[Step, ...]:
        if asked.line.startswith("GET "):
            return (response(b"{}"),)
        if self.steps:
            return self.steps.pop(0)
        return (response(WHOLE),)

    async def turn(self, request: Request, headers: dict[str, str], steps: tuple[Step, ...]) -> dict[str, Any]:
        """What a client, the log, the console and the upstream see of a request."""
        self.there.asked.clear()
        self.steps[:] = [steps]
        with capture_logs() as logs:
            answer = await self.client.post(request.path, json=request.body, headers=headers)
            await self.settled()
        self.steps.clear()
        assert int(answer.headers.pop("content-length", len(answer.content))) == len(answer.content)
        id = answer.headers["x-request-id"]
        body = answer.content.replace(id.encode(), b"ID")
        return self.seen(logs, id) | {
            "status": answer.status_code,
            "headers": {k: v.replace(id, "ID") for k, v in answer.headers.items() if not _TIMES.fullmatch(k)},
            "body": _without_numbers(body),
        }

    async def settled(self) -> None:
        while self.app.state.service.running:  # noqa: ASYNC110 - what follows an answer
            await asyncio.sleep(0)

    def seen(self, logs: Any, id: str) -> dict[str, Any]:
        """All that is counted or written down of a request, but for times, ids and ports."""
        entries, _ = self.app.state.service.requests.since({}, 1)
        last = json.loads(entries[-1]) if entries else {}
        times = {"timestamp", "request_id", "trace_id", "duration_s", "first_event_s", "url"}
        shown = {"id", "time", "decoded", "first_event", "first_token", "duration", "trace_id"}
        return {
            "log": [{k: v for k, v in each.items() if k not in times} for each in logs],
            "timed": [bool(each.get("first_event_s")) for each in logs],
            "console": {k: v for k, v in last.items() if k not in shown},
            "reached": [name for name in ("decoded", "first_event") if last.get(name) is not None],
            "asked": [
                (
                    each.line,
                    {k: v for k, v in each.headers.items() if k not in ("host", "content-length")},
                    _without_numbers(each.body.replace(id.encode(), b"ID")),
                )
                for each in self.there.asked
            ],
            "breaker": sum(each._breaker.failures for each in self.backends),
            "budget": round(sum(each._retrier.budget.tokens for each in self.backends), 6),
            "metrics": self.counts(),
            "experiment": self.experiment(),
        }

    def experiment(self) -> dict[str, Any]:
        """What the experiment has counted, but for sums of times."""
        if not self.app.state.service.deployed("chat").has_experiment:
            return {}
        sums = self.app.state.service.experiments.of("chat")._counters.read()
        rows = {name: sums.rows[:, row] for row, name in enumerate(ROWS)}
        timed = ("time_to_first_token", "inter_token_latency", "latency")
        return {name: (found[:, 0] if name.endswith(timed) else found).tolist() for name, found in rows.items()} | {
            "histograms": sums.histograms.sum(axis=2).tolist(),
            "totals": sums.totals.tolist(),
        }

    def counts(self) -> dict[str, Any]:
        def summed(name: str, cells: Any) -> Any:
            return sum(cells[:-1]) if name.endswith("_seconds") else list(cells)

        totals = self.app.state.service.metrics.totals()
        return {
            (name, labels): summed(name, cells)
            for name, found in totals.items()
            if name != "gw_event_loop_tasks"
            for labels, cells in found.items()
        }


def _without_numbers(body: bytes) -> bytes:
    """A body without times and seeds that were drawn."""
    return _CREATED.sub(b'"created":0', _SEED.sub(b'"seed":0', body))


MINDIE = Mount("/mindie", {"tgi": "mindie", "triton": "mindie-triton"}, "chat")


ONE = (ServedEntity(name="one", backend="far"),)
ARMS = (
    ServedEntity(name="one", backend="far", traffic_percentage=50),
    ServedEntity(name="other", backend="far", model="better", traffic_percentage=50),
)
RATED = Experiment(feedback={"rating": "higher"}, unit=("header:x-ab-unit", "user", "conversation", "api_key"))


@asynccontextmanager
async def gateway(
    *limits: EndpointLimit,
    served: tuple[ServedEntity, ...] = ONE,
    hosts: tuple[str, ...] = ("127.0.0.1",),
    kind: str = "openai",
    **options: Any,
) -> AsyncIterator[Gateway]:
    """A gateway whose endpoint has an experiment with feedback if there are several served entities.

    The upstream is as many servers as it has names.
    """
    made: list[Gateway] = []

    def play(asked: Asked) -> tuple[Step, ...]:
        return made[0].play(asked) if made else (response(b"{}"),)

    async with upstream(play) as there:
        quick: dict[str, Any] = {
            "retries": {"base": 0.001, "cap": 0.001, "budget": 0.3},
            "limits": {"keep_alive": 3600.0},
        }
        quick |= {"health_interval": 3600.0, "failures": 10_000}
        urls = [f"http://{host}:{there.port}{'/v1' if kind == 'openai' else ''}" for host in hosts]
        backend = KINDS[kind]("far", ({"url": urls[0]} if len(urls) == 1 else {"urls": urls}) | quick | options)
        several = isinstance(backend, RemoteServers)
        backends = [each.backend for each in backend._servers] if several else [backend]
        experiment = RATED if len(served) > 1 else Experiment()
        endpoint = Endpoint(served_entities=served, experiment=experiment, aliases=("also",), limits=limits)
        config = Config(
            server=ServerSection(keys_env="DIRECT_KEY", default="chat", mounts=(MINDIE,)),
            backends={"far": {"kind": "openai"}},
            endpoints={"chat": endpoint},
        )
        app = create_app(config, {"far": backend})
        async with listening(app) as port:
            made.append(Gateway(app, backends, there, port))
            async with made[0].client:
                yield made[0]


def fill_disk(patch: pytest.MonkeyPatch, *, full: list[bool]) -> None:
    """Have the gateways that are made keep no record of a request while `full` has something."""

    def put(*_: Any) -> None:
        raise OSError("no space left")

    def ledger_of(own: Callable[..., Any], service: Service, endpoint: str) -> Any:
        return SimpleNamespace(put=put) if full else own(service, endpoint)

    override(patch, app_module, "Service", ledger_of=ledger_of)


async def warm(there: Gateway) -> None:
    """Have the backend open a connection, which then is idle."""
    assert (await there.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
