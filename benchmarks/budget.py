"""Where the CPU time of a request goes, by layer.

    python -m benchmarks.budget [--requests 2000] [--rounds 15] [--protocols openai tgi]

The worker's own code from a client's bytes to the answer's bytes, with the upstream's answers given at once: both
sockets are objects of this process. So the figures have no kernel, no other process and no waiting in them, and the
least of the rounds repeats within a few percent on a busy machine. Keys, the log line, metrics and the upstream call
are on; the line goes to `/dev/null`. Shares by layer are cProfile's own time of each function, scaled to what a request
takes without the profiler; C code counts for its caller. All of it for each protocol's clients in front of a server of
OpenAI's, and its ratio to that of OpenAI's clients.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import os
import pstats
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import uvicorn
import uvloop

from backends.transport.connection import Connection
from benchmarks import upstream
from benchmarks.gateway import BODIES, KEY, written
from benchmarks.remote import configured
from benchmarks.remote import upstream as started
from gateway.app import create_app
from gateway.config import Config
from gateway.config.file import parse
from gateway.observability import logging
from gateway.process.worker import uvicorn_config

LAYERS = (
    ("this benchmark, with its upstream", ("/benchmarks/",)),
    ("server: uvicorn, Litestar, ASGI", ("uvicorn/", "litestar/", "asyncio/", "gateway/server/")),
    ("transport to the upstream", ("backends/transport/",)),
    ("remote backend", ("backends/",)),
    ("adapters and IR", ("adapters/", "schemas/")),
    ("routing, keys, limits", ("gateway/routing/", "gateway/access/", "gateway/service")),
    ("log line, record, console", ("gateway/http/record", "structlog/", "gateway/observability/", "gateway/usage/")),
    ("accounting and metrics", ("gateway/http/accounting", "gateway/http/observation/")),
    ("request and answer", ("gateway/",)),
)
"""A layer, and the parts of paths whose functions it consists of; the first match counts."""


class Memory(asyncio.Transport):
    """A socket's transport that calls a function with what is written.

    Args:
        on_write: called with the bytes.
    """

    def __init__(self, on_write: Callable[[bytes], object]) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._on_write = on_write
        self._closing = False

    def write(self, data: Any) -> None:
        """Pass the bytes on."""
        self._on_write(data)

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._closing

    def close(self) -> None:
        """Close."""
        self._closing = True

    abort = close

    def get_write_buffer_size(self) -> int:
        """Nothing waits."""
        return 0

    def pause_reading(self) -> None:
        """Nothing is read by itself."""

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""


class Client:
    """A client's connection to the application, behind uvicorn's protocol.

    Args:
        app: the application.
        config: its configuration.
    """

    def __init__(self, app: Any, config: Config) -> None:
        self._loop = asyncio.get_running_loop()
        settings = uvicorn_config(app, config.server)
        settings.load()
        state = uvicorn.Server(settings).server_state
        make = cast(Any, settings.http_protocol_class)
        self._protocol = make(config=settings, server_state=state, app_state={}, _loop=self._loop)
        self._done, self._end = self._loop.create_future(), b""
        self._protocol.connection_made(Memory(self._written))

    async def ask(self, request: bytes, end: bytes, times: int) -> None:
        """Send a request and wait for an answer that ends so, several times."""
        for _ in range(times):
            self._done, self._end = self._loop.create_future(), end
            self._protocol.data_received(request)
            await self._done

    def _written(self, data: bytes) -> None:
        if data.endswith(self._end) and not self._done.done():
            self._done.set_result(None)


class Loop(uvloop.Loop):
    """An event loop whose connections lead to the canned upstream."""

    async def create_connection(self, make: Any, *given: Any, **named: Any) -> Any:  # type: ignore[override]
        """Join a connection of a pool and an upstream. Health checks go to a real one."""
        if not isinstance(protocol := make(), Connection):
            return await super().create_connection(lambda: protocol, *given, **named)
        far = upstream.CannedAnswers()
        near = Memory(lambda data: self.call_soon(far.data_received, data))
        far.connection_made(Memory(protocol.data_received))
        protocol.connection_made(near)
        return near, protocol


SHAPES = (("whole", False, 1), ("single", True, 200), ("bursts", True, 200))
"""An upstream's model, whether its answers are streams, and their chunks."""


async def measured(app: Any, config: Config, requests: int, rounds: int, protocols: list[str]) -> None:
    """Run and print: what each protocol costs in front of a server of OpenAI's, and what that is beside the first."""
    async with app.lifespan():
        while app.state.service.health.status != "ready":  # noqa: ASYNC110 - a poll is what health is for
            await asyncio.sleep(0.01)
        client = Client(app, config)
        for model, stream, count in SHAPES:
            asked = max(10, requests // count)
            asks = {
                protocol: partial(client.ask, written(model, protocol, stream=stream), b"0\r\n\r\n" if stream else b"}")
                for protocol in protocols
            }
            costs: dict[str, list[float]] = {protocol: [] for protocol in protocols}
            for ask in asks.values():
                await ask(asked)
            for _ in range(rounds):  # interleaved, so that drift of the machine affects all alike
                for protocol, ask in asks.items():
                    began = time.process_time()
                    await ask(asked)
                    costs[protocol].append((time.process_time() - began) / asked / count * 1e6)
            first = min(costs[protocols[0]])
            for protocol, ask in asks.items():
                with cProfile.Profile(builtins=False) as profile:
                    await ask(asked)
                stats = pstats.Stats(profile)
                calls = stats.total_calls / asked / count  # type: ignore[attr-defined]
                least, middle = min(costs[protocol]), median(costs[protocol])
                print(
                    f"{protocol:10} {model:8} median {middle:7.1f} µs, least {least:7.1f} µs, {calls:6.1f} calls, "
                    f"{least / first:.2f} times {protocols[0]}'s"
                )
                for layer, share in shares(stats):
                    print(f"    {layer:34} {share * least:6.1f} µs  {share * 100:4.0f} %")


def shares(stats: pstats.Stats) -> list[tuple[str, float]]:
    """Each layer's share of all functions' own time."""
    times: defaultdict[str, float] = defaultdict(float)
    for (file, _, _), (_, _, own, *_) in stats.stats.items():  # type: ignore[attr-defined]
        times[next((name for name, parts in LAYERS if any(part in file for part in parts)), "other")] += own
    whole = sum(times.values())
    return sorted(((name, own / whole) for name, own in times.items()), key=lambda item: -item[1])


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--protocols", nargs="+", choices=[*BODIES], default=[*BODIES])
    parser.add_argument("--everything", action="store_true", help="with an experiment and limits")
    given = parser.parse_args()
    os.environ["BENCH_KEY"] = KEY
    upstream.PAUSE = 0
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - the log, until the process ends
    logging.configure()
    with tempfile.TemporaryDirectory() as folder, started() as far:
        config = parse(configured(far, everything=given.everything))
        app = create_app(config, folder=Path(folder), slot="budget")
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)

        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(measured(app, config, given.requests, given.rounds, given.protocols))


if __name__ == "__main__":
    main()
