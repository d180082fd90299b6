"""Engines and the placer as actors of Ray: the only module that imports ray.

The actors are thin shells. What crosses Ray is bytes: specifications, reports and listings, never a token or a secret.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import ray
import structlog
from ray.exceptions import ActorUnavailableError, RayActorError

from backends.native.cluster.engine_host import EngineHost
from backends.native.cluster.placement import VERSION, ModelSpec, ModelStatus, NodeStatus, Report
from backends.native.cluster.placer import EngineGone, PlacedEngine, Placer

log = structlog.get_logger()

_NAMESPACE = "interlingua"
_PLACER = f"placer-{VERSION}"
_ENGINE = f"engine-{VERSION}-"
_STOP_TIMEOUT = 30.0
"""Seconds that an engine's actor gets to end the engine; then Ray ends both."""
_HEAD_TIMEOUT = 5.0
"""Seconds for a connection to the head."""
_CALL_TIMEOUT = 60.0
"""Seconds for an answer of the placer, which comes after ten at the latest."""
_COUNT_INTERVAL = 1.0
"""Seconds between two looks at how much waits."""


class EngineActor:
    """Runs an engine on the node where Ray has placed it, with the devices that Ray gave it by its environment."""

    def __init__(self, spec: bytes) -> None:
        self._spec = spec
        self._host = EngineHost(msgspec.json.decode(spec, type=ModelSpec), ray.util.get_node_ip_address())
        self._start: asyncio.Task[None] | None = None

    async def spec(self) -> bytes:
        """What it runs."""
        return self._spec

    async def report(self) -> bytes:
        """What is known of the engine; the first call starts it."""
        if self._start is None:
            self._start = asyncio.ensure_future(self._host.start())
        await self._start
        return msgspec.json.encode(self._host.report())

    async def stop(self) -> None:
        """End the engine."""
        await self._host.aclose()


class _RayEngine:
    """An engine's actor, as the placer sees it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def spec(self) -> ModelSpec:
        return msgspec.json.decode(await self._call("spec"), type=ModelSpec)

    async def report(self) -> Report:
        return msgspec.json.decode(await self._call("report"), type=Report)

    async def stop(self) -> None:
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                await self._call("stop")
        except (TimeoutError, EngineGone):
            pass
        ray.kill(self._actor)  # it has no node yet, or hangs, or has nothing left to do

    async def _call(self, method: str) -> bytes:
        while True:
            try:
                answer: bytes = await getattr(self._actor, method).remote()
                return answer
            except ActorUnavailableError:  # its node does not answer; Ray decides whether it is dead
                await asyncio.sleep(1.0)
            except RayActorError as error:
                raise EngineGone(str(error).strip().splitlines()[0]) from None


class _RayNodes:
    """The cluster, as the placer sees it."""

    def start(self, name: str, spec: ModelSpec) -> PlacedEngine:
        resources = spec.resources
        # SPREAD: a machine that dies should take one engine with it, not all. An actor is not started again by Ray:
        # the placer does, with back-off.
        options = ray.remote(EngineActor).options(
            name=_ENGINE + name,
            lifetime="detached",
            num_cpus=resources.num_cpus,
            num_gpus=resources.num_gpus,
            resources=resources.custom or None,
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        return _RayEngine(options.remote(msgspec.json.encode(spec)))

    def running(self) -> Mapping[str, PlacedEngine]:
        found: dict[str, PlacedEngine] = {}
        for name in ray.util.list_named_actors():
            if name.startswith(_ENGINE):
                found[name.removeprefix(_ENGINE)] = _RayEngine(ray.get_actor(name))
        return found

    async def reachable(self) -> bool:
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT):
                _, writer = await asyncio.open_connection(host, int(port))
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True


class PlacerActor:
    """The placer, of which a cluster has one: its name is the lock."""

    def __init__(self) -> None:
        self._placer: Placer | None = None
        self._running: asyncio.Task[None] | None = None

    async def engines(self, gateway: str, spec: bytes, seen: bytes, waiting: int) -> bytes:
        """The listing of a model's engines; see `Placer.engines`."""
        return await self._started().engines(gateway, msgspec.json.decode(spec, type=ModelSpec), seen, waiting)

    async def status(self) -> bytes:
        """What is known of all models, as JSON."""
        return msgspec.json.encode(self._started().status())

    def _started(self) -> Placer:
        # Not in `__init__`, which runs outside of the event loop.
        if self._placer is None:
            self._placer = Placer(_RayNodes())
            self._running = asyncio.ensure_future(self._run(self._placer))
        return self._placer

    async def _run(self, placer: Placer) -> None:
        try:
            await placer.run()
        except Exception:
            log.exception("placer.failed")
            os._exit(1)  # Ray starts it again, and it asks the engines what they are
        ray.kill(ray.get_actor(_PLACER))  # nobody needs it: the next gateway starts another


class Cluster:
    """A connection to a cluster.

    Args:
        address: `auto`, or HOST:PORT of its head. This machine must be one of its nodes.

    Raises:
        ConnectionError: there is no cluster, or this machine is none of its nodes.
    """

    def __init__(self, address: str) -> None:
        ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        self._placer: Any = None

    def engines(self, gateway: str, spec: ModelSpec, seen: bytes, count: Callable[[], int]) -> bytes:
        """The listing of a model's engines once it is another one than `seen`, or after a while.

        Args:
            gateway: its name.
            spec: the model.
            seen: the listing that the gateway has.
            count: returns how many sequences wait for an engine there.

        Raises:
            LookupError: the placer or the cluster is gone: connect again.
        """
        try:
            if self._placer is None:
                self._placer = (
                    ray.remote(PlacerActor)
                    .options(name=_PLACER, lifetime="detached", get_if_exists=True, num_cpus=0, max_restarts=-1)
                    .remote()
                )
            encoded, waiting = msgspec.json.encode(spec), count()
            asked = [self._placer.engines.remote(gateway, encoded, seen, waiting)]
            deadline = time.monotonic() + _CALL_TIMEOUT
            while time.monotonic() < deadline:
                done, _ = ray.wait(asked, timeout=_COUNT_INTERVAL)
                if done:
                    return bytes(ray.get(done[0]))
                if (now := count()) != waiting:  # asked again, so that the placer knows
                    waiting = now
                    asked.append(self._placer.engines.remote(gateway, encoded, seen, waiting))
            raise LookupError("The placer does not answer.")
        except ray.exceptions.RayError as error:
            raise LookupError(str(error)) from None

    def models(self) -> list[ModelStatus]:
        """What the placer knows; nothing if there is none.

        Raises:
            LookupError: it does not answer.
        """
        try:
            answer = ray.get(ray.get_actor(_PLACER).status.remote(), timeout=_CALL_TIMEOUT)
        except ValueError:  # there is no such actor
            return []
        except ray.exceptions.RayError as error:
            raise LookupError(str(error)) from None
        return msgspec.json.decode(answer, type=list[ModelStatus])

    def nodes(self) -> list[NodeStatus]:
        """The cluster's machines."""
        return [
            NodeStatus(
                each["NodeManagerAddress"],
                bool(each["Alive"]),
                each["Resources"].get("CPU", 0.0),
                each["Resources"].get("GPU", 0.0),
            )
            for each in ray.nodes()
        ]

    def close(self) -> None:
        """Disconnect."""
        ray.shutdown()
