"""The options of the native backend, as a configuration gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import structlog

from backends.affinity import AffinityPolicy
from backends.autoscaling import Scaling
from backends.images import ImageOptions
from backends.native.checkpoints.folder import read_json
from backends.native.checkpoints.heads import why_not_split
from backends.native.cluster.placement import ModelSpec, Resources
from backends.native.demo import WEIGHTS
from backends.native.protocol.addresses import TcpAddress, read_address, unix_address
from backends.native.protocol.engine_options import EngineOptions, ModelOptions
from backends.native.protocol.greeting import read_secret
from backends.native.rerankers import check_reranker, find_reranker
from backends.native.sentence_transformers import RecipeError
from backends.native.tools.families.table import check_formats

log = structlog.get_logger()

RAY_ADDRESS = r"^(auto|[^\s/:]+:\d{1,5})$"
SECRET_ENV = "ENGINE_SECRET"
LACKS_RAY = "engines on Ray need it: pip install 'interlingua[cluster]'"

_RENAMED_KEYS = {"adapters": "lora_adapters", "tier": "execution_path", "patience": "reconnect_timeout"}
"""Former names of options, which are still read, and their names now."""
_RENAMED_VALUES = {("execution_path", "cache"): "per_sequence"}
"""Former values of options, by the option's name now, and the same values now."""


class NativeOptions(ModelOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engine's options, and those of its client.

    Attributes:
        model: folder of the checkpoint; the bundled model's by default.
        engine: run the engine in a process of its own, or in a thread of this one.
        socket: Unix socket of a shared engine; without it the backend starts its own.
        replicas: engines of this model on this machine, or on Ray's nodes, there also a table of limits; None: 1, or 0
            where there are `engines` or a `socket`.
        engines: addresses of engines that somebody else runs: `tcp://HOST:PORT` or `unix:///PATH`.
        engines_file: a file with such addresses, which may change (`client.engines_file`).
        secret_env: environment variable with the secret of engines over TCP; None: `ENGINE_SECRET` with `ray` or an
            `engines_file`.
        ray: the Ray cluster on whose nodes the engines are: `auto` (the one that this machine is of), or HOST:PORT of
            its head; None: they are on this machine.
        resources: what an engine on Ray takes of its node.
        routing: which of several engines gets a request (`backends.affinity`).
        images: limits and sources of images.
        tool_format: how the model writes tool calls: "auto" (by its chat template), "generic" (tools are listed in the
            system message), "none", or the name of a family (`backends.native.tools.families.table`).
        reasoning_format: how it writes reasoning: "auto", "none", or the name of a family.
        heartbeat: seconds between pings to the engine.
        hung_after: seconds without a sign of life after which an engine is killed; while it loads, ten times as many.
        reconnect_timeout: seconds that requests wait for the next engine after a crash.
        wake: whether a request wakes a sleeping model, and waits for it as for the next engine, or only an operator.
        warm_engine: keep a second engine process that has done its imports and takes over when the engine ends; with
            "loaded" it has also loaded and checked the model, on a CPU.
    """

    model: str = str(WEIGHTS)
    engine: Literal["process", "inprocess"] = "process"
    socket: str | None = None
    replicas: Annotated[int, msgspec.Meta(ge=0, le=64)] | Scaling | None = None
    engines: tuple[str, ...] = ()
    engines_file: str | None = None
    ray: Annotated[str, msgspec.Meta(pattern=RAY_ADDRESS)] | None = None
    resources: Resources | None = None
    secret_env: str | None = None
    routing: AffinityPolicy = "prefix"
    images: ImageOptions = ImageOptions()
    tool_format: str = "auto"
    reasoning_format: str = "auto"
    heartbeat: float = 1.0
    hung_after: float = 30.0
    reconnect_timeout: float = 30.0
    warm_engine: bool | Literal["loaded"] = False
    wake: Literal["manual", "on_request"] = "manual"

    def __post_init__(self) -> None:
        """Refuse unknown formats, addresses that are none, a backend without any engine, and what Ray alone can do."""
        check_formats(self.tool_format, self.reasoning_format)
        check_reranker(self.reranker)
        for address in self.engines:
            read_address(address)
        if len(set(self.engines)) < len(self.engines):
            raise ValueError("`engines` names an engine twice")
        if self.replicas == 0 and not self.elsewhere and self.engines_file is None:
            raise ValueError("`replicas = 0` leaves the model without an engine: name `engines`")
        if self.engine == "inprocess" and (
            self.elsewhere or self.engines_file or self.ray or self.replicas not in (None, 1)
        ):
            raise ValueError('an engine in a thread (`engine = "inprocess"`) has no replicas')
        if self.engine == "inprocess" and self.tensor_parallel > 1:
            raise ValueError('`tensor_parallel` takes processes: leave out `engine = "inprocess"`')
        self._check_cluster()

    def _check_cluster(self) -> None:
        if self.ray is None:
            if isinstance(self.replicas, Scaling) or self.resources is not None:
                raise ValueError("`resources`, and `replicas` as a table, are for engines on Ray: set `ray`")
            return
        if self.replicas == 0 or self.warm_engine or self.engines_file:
            raise ValueError("engines on Ray (`ray`) have no `replicas = 0`, no `warm_engine` and no `engines_file`")
        if self.device not in ("auto", "cpu") and not (self.resources and self.resources.num_gpus):
            raise ValueError(f'`device = "{self.device}"` on Ray needs `resources = {{ num_gpus = 1 }}`')
        if self.tensor_parallel > 1:
            raise ValueError("a model over several devices (`tensor_parallel`) cannot be placed on Ray (`ray`) yet")

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Addresses of the engines that somebody else runs."""
        return (*((unix_address(Path(self.socket)),) if self.socket else ()), *self.engines)

    @property
    def own_engines(self) -> tuple[EngineOptions, ...]:
        """The options of each engine that is started for this backend."""
        if self.ray is not None:
            return ()
        somewhere = bool(self.elsewhere or self.engines_file)
        replicas = self.replicas if isinstance(self.replicas, int) else int(not somewhere)
        given = self._given
        return tuple(
            EngineOptions(**given, replica_number=number, replica_count=replicas) for number in range(replicas)
        )

    def placed(self, name: str) -> ModelSpec:
        """What is to be placed on Ray's nodes."""
        number = self.replicas if isinstance(self.replicas, int) else 1
        return ModelSpec(
            name,
            EngineOptions(**self._given),
            self.resources or Resources(),
            self.secret_variable or "",
            self.hung_after,
            self.replicas if isinstance(self.replicas, Scaling) else Scaling(min=number, max=number),
        )

    @property
    def secret_variable(self) -> str | None:
        """The environment variable with the secret of engines over TCP; None: there are none."""
        return self.secret_env or (SECRET_ENV if self.ray or self.engines_file else None)

    @property
    def _given(self) -> dict[str, Any]:
        # The engine's command is made of these fields, so those of its client must not be among them.
        return {field.name: getattr(self, field.name) for field in msgspec.structs.fields(ModelOptions)}


def read_options(given: Mapping[str, Any]) -> NativeOptions:
    """Convert the fields of a backend's configuration; former names and values are accepted with a warning.

    Raises:
        msgspec.ValidationError: an option is unknown, of a wrong type, or given by its former name and its name.
    """
    fields = dict(given)
    for former, name in _RENAMED_KEYS.items():
        if former in fields:
            if name in fields:
                raise msgspec.ValidationError(f"`{former}` is the former name of `{name}`: give only `{name}`")
            fields[name] = fields.pop(former)
            log.warning("backend.option_deprecated", option=former, use=name)
    # After the keys: a former key may have a former value.
    for (name, former_value), value in _RENAMED_VALUES.items():
        if fields.get(name) == former_value:
            fields[name] = value
            log.warning("backend.option_deprecated", option=f'{name} = "{former_value}"', use=f'{name} = "{value}"')
    return msgspec.convert(fields, NativeOptions)


def problems_of(given: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What a start would refuse of valid options on this machine: the path of each option, and why."""
    options = read_options(given)
    if find_spec("torch") is None or find_spec("transformers") is None:
        yield ("kind",), "native models need the engine: pip install 'interlingua[engine]'"
    if options.ray is not None and find_spec("ray") is None:
        yield ("ray",), LACKS_RAY
    if options.ray or any(isinstance(read_address(address), TcpAddress) for address in options.engines):
        try:
            read_secret(options.secret_variable)
        except ValueError as error:
            yield ("secret_env",), str(error)
    try:
        find_reranker(options.model, options.reranker)
    except RecipeError as error:
        yield ("reranker",), str(error)
    if (why := _why_not_split(options)) is not None:
        yield ("tensor_parallel",), f"the model cannot be split over {options.tensor_parallel} devices: {why}"
    if options.images.folder is not None and not Path(options.images.folder).is_dir():
        yield ("images", "folder"), f"there is no folder {options.images.folder}"
    if options.lora_folder and not Path(options.lora_folder).is_dir():
        yield ("lora_folder",), f"there is no folder {options.lora_folder}"


def _why_not_split(options: NativeOptions) -> str | None:
    """What is known without torch of why the engine would refuse `tensor_parallel`."""
    if options.tensor_parallel == 1:
        return None
    if find_spec("accelerate") is None:
        return "transformers needs accelerate for it: pip install 'interlingua[parallel]'"
    if options.lora_adapters or options.lora_folder:
        return "LoRA adapters are not split"
    # A model of the hub is not there yet; the engine looks again.
    config = read_json(Path(options.model) / "config.json")
    return None if config is None else why_not_split(config, options.tensor_parallel)
