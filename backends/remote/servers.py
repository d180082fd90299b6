"""Several servers of one model as one backend: which of them gets a request, and who is asked next if it cannot answer.

Strategy:
- A request goes to one of the servers that are well (`backends.affinity`). If it fails before its first event, the
  others are asked in turn, those with the fewest requests first.
- `prefix` is approximate: servers do not report their caches, so each process remembers what it has sent to whom. A
  block is `_BLOCK` characters of the conversation. Where it knows nothing, the conversation's digest decides, for all
  processes alike.
- A server that an endpoint picker has chosen goes before all of this, if it is well.
- `latency` takes the server whose first event is expected first: its mean so far, for each request that it has.
- A plain request is sent without a task (`backends.direct`). A task that goes on with it begins with the server that
  has it, and asks the others as ever.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from random import random
from typing import Any, TypeVar
from urllib.parse import urlsplit

import structlog

from backends.affinity import Candidate, PrefixIndex, choose, destination, draws
from backends.base import Capabilities, Health, Sink
from backends.direct import DirectExchange, StreamSink, WholeSink
from backends.observation import Attempt, Observer, Phases, Upstream
from backends.prompts import conversation_of, texts_of
from backends.remote.backend import RemoteBackend
from backends.remote.options import RemoteRouting
from schemas.errors import GatewayError, is_failover_eligible
from schemas.ir import Embed, Embeddings, Events, Generate, Tokenize, Tokens
from schemas.origin import Relay, RelayedAnswer

log = structlog.get_logger()
R = TypeVar("R")

_BLOCK = 1024
"""Characters, some 250 tokens: shorter prompts are computed in less time than a queue takes."""
_REMEMBERED = 20_000
"""Blocks that are remembered of a server, the latest ones: some 20 million characters."""
_NEWEST = 0.2
"""The weight of the newest time to a first event in a server's mean."""
_WELL = Health("ready")


@dataclass(slots=True, eq=False)
class _Server:
    """A server and what this process knows of it.

    Attributes:
        name: its URL.
        address: `HOST:PORT` of its URL.
        in_flight: requests of this process.
        latency: mean seconds to the first event, exponentially weighted; 0: none has answered yet.
        sent: keys of the blocks that it was sent, the latest last.
    """

    name: str
    address: str
    backend: RemoteBackend
    in_flight: int = 0
    latency: float = 0.0
    sent: OrderedDict[bytes, None] = field(default_factory=OrderedDict)


_SENT_TO: ContextVar[_Server | None] = ContextVar("sent_to", default=None)
"""The server that has the request with which the present task goes on; None: none has it, or it was asked already."""


class RemoteServers:
    """Answers with one of several servers of the same protocol and model.

    Args:
        name: the backend's name.
        servers: by URL.
        routing: which of them gets a request.
    """

    def __init__(self, name: str, servers: dict[str, RemoteBackend], routing: RemoteRouting) -> None:
        self.name = name
        self._servers = [_Server(url, _address_of(url), backend) for url, backend in servers.items()]
        self._first = self._servers[0].backend
        self._routing = routing
        self._index = PrefixIndex()
        self._draws = draws(random())

    @property
    def capabilities(self) -> Capabilities:
        """What the servers support: they have the same options."""
        return self._first.capabilities

    async def start(self) -> None:
        """Start all of them. A server that is not there is no error.

        Raises:
            schemas.errors.BackendUnavailable: the key, certificates or tokenizer cannot be used.
        """
        await asyncio.gather(*(server.backend.start() for server in self._servers))

    async def aclose(self) -> None:
        """Stop the health checks and close all connections. Idempotent."""
        await asyncio.gather(*(server.backend.aclose() for server in self._servers))

    async def healthy(self) -> Health:
        """The state of the best server."""
        states = [server.backend.health for server in self._servers]
        return min(states, key=lambda health: (("ready", "loading", "failed").index(health.status), health.detail))

    def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        """Answer with one server; with the next one if it fails before its first event."""
        return self.generate_into(request, None)

    async def generate_into(self, request: Generate, sink: Sink | None) -> AsyncGenerator[Events, None]:
        """As `generate`, but for the batches that the sink has taken: none of the first ones."""
        order = self._order(request)
        for server in order:
            began, started = time.monotonic(), False
            server.in_flight += 1
            try:
                async with aclosing(server.backend.generate_into(request, sink)) as batches:
                    async for events in batches:
                        if not started:
                            started = True
                            self._note_latency(server, time.monotonic() - began)
                        yield events
                return
            except GatewayError as error:
                if started or server is order[-1] or not is_failover_eligible(error):
                    raise
                self._log_failure(server, error)
            finally:
                server.in_flight -= 1

    def exchange(self, request: Generate) -> DirectExchange | None:
        """An exchange with one server, without a task (`backends.direct`)."""
        if self._routing == "latency":  # which learns from first events
            return None
        server = self._order(request)[0]
        exchange = server.backend.exchange(request)
        return None if exchange is None else _ServerExchange(server, exchange)

    async def embed(self, request: Embed) -> Embeddings:
        """Request embeddings from one server."""
        return await self._ask(request, lambda backend: backend.embed(request))

    async def relay(self, request: Relay) -> RelayedAnswer:
        """Send a request on as it came, to one server."""
        return await self._ask(request, lambda backend: backend.relay(request))

    async def tokenize(self, request: Tokenize) -> Tokens:
        """Tokenize with the configured tokenizer."""
        return await self._first.tokenize(request)

    def ignored(self, request: Generate | Embed | Tokenize) -> tuple[str, ...]:
        """The unknown fields of the client's body that do not reach a server."""
        return self._first.ignored(request)

    async def _ask(self, request: Embed | Relay, ask: Callable[[RemoteBackend], Awaitable[R]]) -> R:
        order = self._order(request)
        for server in order:
            server.in_flight += 1
            try:
                return await ask(server.backend)
            except GatewayError as error:
                if server is order[-1] or not is_failover_eligible(error):
                    raise
                self._log_failure(server, error)
            finally:
                server.in_flight -= 1
        raise AssertionError("the last server has answered or failed")

    def _order(self, request: Generate | Embed | Relay) -> list[_Server]:
        """The servers in the order in which they are asked."""
        well = [server for server in self._servers if server.backend.health == _WELL]
        if (chosen := _SENT_TO.get()) in self._servers:
            _SENT_TO.set(None)  # what else this task asks goes where it belongs
        else:
            chosen = self._choose(well or self._servers, request)
        others = [server for server in self._servers if server is not chosen]
        return [chosen, *sorted(others, key=lambda server: (server not in well, server.in_flight))]

    def _choose(self, servers: Sequence[_Server], request: Generate | Embed | Relay) -> _Server:
        picked = destination([each.address for each in servers], request.destinations) if request.destinations else None
        if picked is not None:
            return servers[picked]
        if self._routing == "latency":
            return min(servers, key=lambda server: server.latency * (server.in_flight + 1))
        if not isinstance(request, Generate):
            return servers[
                choose("least", [Candidate(each.name, each.in_flight) for each in servers], 0, None, random())
            ]
        keys = _keys_of(request) if self._routing == "prefix" else []
        hits = self._index.hits(keys)
        candidates = [Candidate(each.name, each.in_flight, hits.get(self._number(each), 0)) for each in servers]
        chosen = servers[choose(self._routing, candidates, len(keys), conversation_of(request), next(self._draws))]
        self._remember(chosen, keys)
        return chosen

    def _remember(self, server: _Server, keys: list[bytes]) -> None:
        number = self._number(server)
        self._index.store(number, keys)
        # The last block goes first, as in the servers' own caches: a prefix is useful without its end.
        for key in reversed(keys):
            server.sent[key] = None
            server.sent.move_to_end(key)
        while len(server.sent) > _REMEMBERED:
            self._index.remove(number, [server.sent.popitem(last=False)[0]])

    def _number(self, server: _Server) -> int:
        return self._servers.index(server)

    @staticmethod
    def _note_latency(server: _Server, seconds: float) -> None:
        server.latency = seconds if not server.latency else server.latency + _NEWEST * (seconds - server.latency)

    def _log_failure(self, server: _Server, error: GatewayError) -> None:
        log.warning("server.failed", backend=self.name, url=server.name, error=error.kind)


class _ServerExchange:
    """An exchange with one of the servers (`backends.direct.DirectExchange`): its request is one of the server's.

    Args:
        server: the one.
        exchange: with it.
    """

    __slots__ = ("_exchange", "_load", "_server")

    def __init__(self, server: _Server, exchange: DirectExchange) -> None:
        self._server = server
        self._exchange = exchange
        # Before it is sent: other requests may choose their servers first.
        self._load = _Load(server)

    def send(self) -> None:
        self._exchange.send()

    def hear(self, observer: Observer, sink: WholeSink) -> None:
        self._load.observer = observer
        self._exchange.hear(self._load, sink)

    def hear_stream(self, observer: Observer, sink: StreamSink) -> None:
        self._load.observer = observer
        self._exchange.hear_stream(self._load, sink)

    def put_back(self) -> None:
        self._load.leave()
        self._exchange.put_back()

    def get_ready(self) -> None:
        self._exchange.get_ready()

    def pause(self) -> None:
        self._exchange.pause()

    def resume(self) -> None:
        self._exchange.resume()

    def leave(self) -> None:
        self._exchange.leave()

    def hand_over(self) -> Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]:
        self._load.leave()  # the task counts it again
        wrap, server = self._exchange.hand_over(), self._server

        async def go_on(work: Coroutine[Any, Any, None]) -> None:
            _SENT_TO.set(server)
            await wrap(work)

        return go_on


class _Load:
    """A request for a server, counted until its attempt ends: listens to it for another observer.

    Attributes:
        observer: who else listens, once it is sent.
    """

    __slots__ = ("_attempt", "_server", "headers", "observer")

    observer: Observer

    def __init__(self, server: _Server) -> None:
        self._server: _Server | None = server
        server.in_flight += 1

    def attempt(self, upstream: Upstream, model: str) -> Attempt:
        self._attempt = self.observer.attempt(upstream, model)
        self.headers = self._attempt.headers
        return self

    def retried(self, backend: str) -> None:
        self.observer.retried(backend)

    def engine_ran(self, sequences: Sequence[Phases]) -> None:
        self.observer.engine_ran(sequences)

    def answered(self, status: int) -> None:
        self._attempt.answered(status)

    def end(self, error: BaseException | None = None) -> None:
        self.leave()
        self._attempt.end(error)

    def leave(self) -> None:
        """Count it no more."""
        server, self._server = self._server, None
        if server is not None:
            server.in_flight -= 1


def _address_of(url: str) -> str:
    """`HOST:PORT`; the brackets of an IPv6 address stay."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return host if parts.port is not None else f"{host}:{443 if parts.scheme == 'https' else 80}"


def _keys_of(request: Generate) -> list[bytes]:
    """The keys of the first prompt's full blocks, each chained to those before it."""
    text = "".join(texts_of(request.prompts[0])).encode("utf-8", "surrogatepass")
    keys: list[bytes] = []
    parent = b""
    for at in range(0, len(text) - _BLOCK + 1, _BLOCK):
        parent = blake2b(text[at : at + _BLOCK], key=parent, digest_size=16).digest()
        keys.append(parent)
    return keys
