"""What is placed on nodes, and what is known of it: the messages between gateways, placer and engines' actors.

They cross Ray as bytes (JSON), so that its nodes need not agree on classes.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Literal

import msgspec

from backends.autoscaling import Scaling
from backends.native.protocol.engine_options import EngineOptions

_Amount = Annotated[float, msgspec.Meta(ge=0)]
try:
    VERSION = version("interlingua")
except PackageNotFoundError:  # a checkout that was not installed
    VERSION = "0"
"""Engines and gateways of different versions do not understand each other, so each version has its own engines."""


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one engine takes of a node, as Ray counts it.

    Attributes:
        num_cpus: cores; an engine on CPUs has as many threads.
        num_gpus: accelerators; the engine sees no others.
        custom: the node's own resources, by name, as `ray start --resources` gives them.
    """

    num_cpus: _Amount = 1.0
    num_gpus: _Amount = 0.0
    custom: dict[str, _Amount] = {}


class ModelSpec(msgspec.Struct, frozen=True):
    """A model whose engines are to be placed.

    Attributes:
        name: the backend's, for people.
        options: of each engine.
        resources: of each engine.
        secret_env: environment variable, on each node, with the secret of connections to engines.
        hung_after: seconds of silence after which an engine is killed.
        scaling: how many engines there are.
        version: of the gateway; a node must have the same.
    """

    name: str
    options: EngineOptions
    resources: Resources
    secret_env: str
    hung_after: float
    scaling: Scaling
    version: str = VERSION

    @property
    def key(self) -> str:
        """Names the engines: equal for gateways that can share them."""
        made = (self.version, self.options, self.resources, self.secret_env)
        return hashlib.sha256(msgspec.json.encode(made, order="sorted")).hexdigest()[:12]


class Report(msgspec.Struct, frozen=True):
    """What an engine's actor says of it.

    Attributes:
        address: where it listens, `tcp://HOST:PORT`; empty: it cannot.
        incarnation: of the actor: another one may be given the same address later.
        state: `failed` is for good.
        detail: progress, or why it failed.
        pid: of its process, on its node; 0: there is none.
        running: sequences in its batch, those of all gateways.
        waiting: sequences in its queue.
    """

    address: str
    incarnation: str
    state: Literal["loading", "ready", "failed"]
    detail: str = ""
    pid: int = 0
    running: int = 0
    waiting: int = 0


class EngineStatus(msgspec.Struct, frozen=True):
    """What the placer knows of an engine. `report` None: it has no node yet. `silent`: its actor does not answer."""

    name: str
    report: Report | None
    leaving: bool
    silent: bool


class ModelStatus(msgspec.Struct, frozen=True):
    """What the placer knows of a model: what it wants, its engines, why the latest one has ended, and the sequences
    that wait for an engine at its gateways.
    """

    name: str
    model: str
    gateways: int
    target: int
    scaling: Scaling
    engines: tuple[EngineStatus, ...]
    last_failure: str = ""
    waiting: int = 0


class NodeStatus(msgspec.Struct, frozen=True):
    """A machine of the cluster, and all that it has."""

    address: str
    alive: bool
    cpus: float
    gpus: float


def listing(reports: list[Report]) -> bytes:
    """The file by which workers learn of engines: an address and an incarnation a line (`client.engines_file`)."""
    return b"".join(sorted(f"{report.address} {report.incarnation}\n".encode() for report in reports))
