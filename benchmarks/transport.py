"""CPU cost of HTTP clients: this process' CPU per whole answer, all against the same canned upstream.

    python -m benchmarks.transport [--requests 5000] [--connections 64]

`httpx-aiohttp` and `pyreqwest` are measured if installed; the gateway needs neither.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import uvloop

from adapters.base import Outbound
from backends.transport import Transport
from benchmarks.remote import upstream

BODY = b'{"model":"whole","messages":[{"role":"user","content":"What is the capital of France?"}]}'
JSON = {"content-type": "application/json"}
Call = Callable[[], Awaitable[bytes]]
Candidate = Callable[[str], AbstractAsyncContextManager[Call]]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--connections", type=int, default=64)
    given = parser.parse_args()
    with upstream() as port:
        for name, candidate in CANDIDATES.items():
            url = f"http://127.0.0.1:{port}"
            try:
                spent = uvloop.run(measure(candidate(url), given.requests, given.connections))
            except ImportError:
                print(f"{name:36} not installed")
                continue
            print(f"{name:36} {spent * 1e6:8.1f} µs CPU per request")


async def measure(client: AbstractAsyncContextManager[Call], requests: int, connections: int) -> float:
    """CPU seconds of this process per request, at that many concurrent requests."""
    async with client as call:
        await _many(call, connections * 4, connections)
        before = time.process_time()
        await _many(call, requests, connections)
        return (time.process_time() - before) / requests


async def _many(call: Call, requests: int, connections: int) -> None:
    waiting = iter(range(requests))

    async def worker() -> None:
        for _ in waiting:
            assert len(await call()) > 200

    await asyncio.gather(*(worker() for _ in range(connections)))


@asynccontextmanager
async def own(url: str) -> AsyncIterator[Call]:
    transport = Transport(url)
    request = Outbound("/v1/chat/completions", BODY)

    async def call() -> bytes:
        response = await transport.exchange(request, asyncio.get_running_loop().time() + 60)
        try:
            return (await response.reply(None)).body
        finally:
            response.close()

    yield call
    await transport.aclose()


def _httpx(transport: Callable[[], httpx.AsyncBaseTransport]) -> Candidate:
    @asynccontextmanager
    async def candidate(url: str) -> AsyncIterator[Call]:
        async with httpx.AsyncClient(transport=transport(), timeout=60) as client:

            async def call() -> bytes:
                reply = await client.post(f"{url}/v1/chat/completions", content=BODY, headers=JSON)
                return reply.content

            yield call

    return candidate


def _stock() -> httpx.AsyncBaseTransport:
    return httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1024, max_keepalive_connections=1024))


def _aiohttp() -> httpx.AsyncBaseTransport:
    from httpx_aiohttp import AiohttpTransport

    transport: httpx.AsyncBaseTransport = AiohttpTransport()
    return transport


@asynccontextmanager
async def _pyreqwest(url: str) -> AsyncIterator[Call]:
    from pyreqwest.client import ClientBuilder

    async with ClientBuilder().build() as client:

        async def call() -> bytes:
            request = client.post(f"{url}/v1/chat/completions").headers(JSON).body_bytes(BODY).build()
            return bytes(await (await request.send()).bytes())

        yield call


CANDIDATES: dict[str, Candidate] = {
    "httpx": _httpx(_stock),
    "httpx over aiohttp": _httpx(_aiohttp),
    "our transport, called directly": own,
    "pyreqwest (its threads included)": _pyreqwest,
}

if __name__ == "__main__":
    main()
