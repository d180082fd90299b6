"""Runs one engine on a node: the process, started again when it ends, and a link that watches it.

The link is that of a worker (`EngineLink`): it knows whether the engine loads, is ready or hangs, and how much it has
to do. The engine keeps its port when it is started again, so that gateways find it again by themselves.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

import structlog
from msgspec.structs import replace

from backends.native.client.engine_link import EngineLink
from backends.native.client.engine_process import EngineProcess, engine_command
from backends.native.client.transports import over_tcp
from backends.native.cluster.placement import VERSION, ModelSpec, Report
from backends.native.protocol.addresses import TcpAddress
from backends.native.protocol.greeting import read_secret
from backends.native.protocol.messages import Step

log = structlog.get_logger()

_HEARTBEAT = 1.0
_MOST_ENDS = 3
"""Ends in a row before it was ever ready, after which the engine is given up: another node may do better."""


class EngineHost:
    """Runs an engine.

    Args:
        spec: what it runs.
        host: the node's address, at which the engine listens.
    """

    def __init__(self, spec: ModelSpec, host: str) -> None:
        self._spec = spec
        self._host = host
        self._incarnation = secrets.token_hex(4)
        self._address: TcpAddress | None = None
        self._process: EngineProcess | None = None
        self._link: EngineLink | None = None
        self._ends = 0
        self._why = ""  # the engine cannot load
        self._failure: str | None = None

    async def start(self) -> None:
        """Start the engine; a failure is in the reports."""
        options, variable = self._spec.options, self._spec.secret_env
        try:
            if self._spec.version != VERSION:
                raise ValueError(
                    f"this node has version {VERSION} of Interlingua, and the gateway {self._spec.version}"
                )
            read_secret(variable)
            if not Path(options.model).exists():  # noqa: ASYNC240 - once
                raise ValueError(f"there is no model {options.model}")
            self._address = _free_address(self._host)
        except (ValueError, OSError) as error:
            self._fail(str(error))
            return
        cores = int(self._spec.resources.num_cpus)
        if not options.threads and not self._spec.resources.num_gpus and cores:
            options = replace(options, threads=cores)
        command = engine_command(options, self._address, secret_env=variable)
        self._process = process = EngineProcess(command, self._on_exit)
        connect = over_tcp(self._address, lambda: read_secret(variable), kill=process.kill)
        name = str(self._address)
        self._link = EngineLink(0, name, connect, self, heartbeat=_HEARTBEAT, hung_after=self._spec.hung_after)
        await process.start()
        self._link.start()

    def report(self) -> Report:
        """What is known of the engine."""
        address = str(self._address or "")
        if self._failure is not None or self._link is None or self._process is None:
            return Report(address, self._incarnation, "failed" if self._failure else "loading", self._failure or "")
        link, pong = self._link, self._link.pong
        return Report(
            address,
            self._incarnation,
            "ready" if link.ready is not None else "loading",
            link.health.detail,
            self._process.pid,
            pong.running if pong is not None else 0,
            pong.waiting if pong is not None else 0,
        )

    async def aclose(self) -> None:
        """Stop the engine. Idempotent."""
        if self._link is not None:
            await self._link.aclose()
        if self._process is not None:
            await self._process.aclose()

    def _on_exit(self, code: int) -> None:
        self._ends += 1
        if self._ends >= _MOST_ENDS:
            self._fail(self._why or f"the engine ended {self._ends} times, at last with exit code {code}")

    def _fail(self, why: str) -> None:
        self._failure = f"{self._host}: {why}"
        log.error("engine.given_up", why=self._failure)

    def engine_ready(self, link: EngineLink) -> None:  # noqa: ARG002 - there is one
        """Forgive the ends of its predecessors."""
        self._ends, self._why = 0, ""

    def engine_failed(self, link: EngineLink) -> None:
        """Remember why: the process ends now, and is started again, as memory may be free then."""
        self._why = link.health.detail

    def engine_stepped(self, link: EngineLink, step: Step) -> None:
        """Do nothing: this link submits nothing."""

    def engine_cached(self, link: EngineLink, keys: list[bytes]) -> None:
        """Do nothing: this link does not watch the cache."""

    def engine_loads(self, link: EngineLink) -> None:
        """Do nothing: reports look at the link."""

    engine_silent = engine_lost = engine_loads


def _free_address(host: str) -> TcpAddress:
    """An address at which nobody listens now."""
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return TcpAddress(host, int(probe.getsockname()[1]))
