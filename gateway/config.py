"""The configuration: one TOML file, decoded into structs that forbid unknown keys.

Names follow Databricks where it has them (endpoint, served_entities, traffic_percentage). Checks that need backends or
protocols are in `gateway.app.validate`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from schemas.catalog import TensorNames

_T = TypeVar("_T")

BUNDLED = "interlingua"
"""Name of the endpoint that serves the bundled model where nothing is configured."""

UNITS = ("user", "client_request_id", "api_key", "conversation", "request")
"""Where the unit of assignment may come from, beside `header:<name>`."""

FEEDBACK_METRICS = 8
"""The most feedback metrics of an endpoint."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Delay = Annotated[float, msgspec.Meta(ge=0)]


class ConfigError(Exception):
    """The configuration is wrong; the text names file, line and key as far as they are known."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: frozen, unknown keys are errors."""


class Mount(Section, frozen=True):
    """A path prefix below which every route exists again, in other dialects (protocol -> dialect)."""

    prefix: Annotated[str, msgspec.Meta(pattern=r"^(/[^/?#{}\s]+)+/?$")]
    dialects: dict[str, str]


class Listener(Section, frozen=True):
    """Another port, with other dialects."""

    port: Port
    dialects: dict[str, str] = {}


class Limits(Section, frozen=True):
    """Limits of requests. Sizes in bytes, times in seconds.

    Attributes:
        max_body: of a request's body.
        max_image_body: of a body with images as base64.
        body_idle: between two pieces of a body.
        body_total: for the whole body.
        max_concurrent_requests: of one worker; more are refused.
        stored_responses: of everything kept for `/v1/responses/{id}`; 0 keeps nothing.
    """

    max_body: Count = 16 * 1024 * 1024
    max_image_body: Count = 32 * 1024 * 1024
    body_idle: Seconds = 10.0
    body_total: Seconds = 60.0
    max_concurrent_requests: Count = 1024
    stored_responses: Annotated[int, msgspec.Meta(ge=0)] = 64 * 1024 * 1024


class ServerSection(Section, frozen=True):
    """How the server listens, authenticates and ends. Times in seconds.

    Attributes:
        host, port: to listen on; port 0 picks a free one.
        workers: number of HTTP processes.
        dialects: protocol -> dialect, where it is not the protocol's first.
        dialect_options: dialect -> fields of its table to override.
        mounts: path prefixes with other dialects.
        listeners: more ports, with other dialects.
        limits: of requests.
        keys_env: environment variable with the API keys, separated by commas.
        admin_keys_env: the same for keys that may also change endpoints while the server runs.
        state_file: keeps these changes.
        drain_delay: between SIGTERM and the end of accepting connections.
        drain_timeout: for running requests to finish.
        keep_alive: that an idle connection is kept.
        metrics: whether there is `/metrics`.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    dialects: dict[str, str] = {}
    dialect_options: dict[str, dict[str, Any]] = {}
    mounts: tuple[Mount, ...] = ()
    listeners: tuple[Listener, ...] = ()
    limits: Limits = Limits()
    keys_env: str | None = None
    admin_keys_env: str | None = None
    state_file: str | None = None
    drain_delay: Delay = 0.0
    drain_timeout: Delay = 600.0
    keep_alive: Count = 75
    metrics: bool = True


Task = Literal["chat", "completions", "embeddings"]
Routing = Literal["hash"]
"""The names of the policies in `gateway.routing.policy`."""


class Shadow(Section, frozen=True):
    """A shadow's limits in each worker: copies at a time, more are dropped; seconds for a copy."""

    max_concurrent_requests: Count = 4
    timeout: Seconds = 60.0


class Paired(Section, frozen=True):
    """How many of the first arm's answers another arm gives again, from the same prompt and seed.

    Attributes:
        share: of the first arm's answers.
        max_concurrent_requests: pairs at a time in each worker; more are dropped.
        timeout: seconds for a pair.
        max_tokens: of prompt and answer together; longer ones are not paired.
    """

    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    max_concurrent_requests: Count = 1
    timeout: Seconds = 60.0
    max_tokens: Count = 2048


class ServedEntity(Section, frozen=True):
    """One served entity of an endpoint: a backend, and the name of a model there.

    Attributes:
        name: sent as `served-model-name`.
        backend: a section of `backends`.
        model: the model's name there, or a LoRA adapter's; None: the endpoint's name.
        traffic_percentage: with 0, it answers direct calls, and requests that the others failed.
        task: None: the endpoint's.
        shadow: makes it a shadow, which gets copies of generation requests and answers direct calls only.
        paired: has it compared with the first served entity token by token; it may be a shadow, too.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+$", max_length=128)]
    backend: str
    model: str | None = None
    traffic_percentage: Annotated[int, msgspec.Meta(ge=0, le=100)] = 100
    task: Task | None = None
    shadow: Shadow | None = None
    paired: Paired | None = None


class Guardrail(Section, frozen=True):
    """Stops an arm whose failure rate is, with confidence, more than `worse_than` above the first arm's."""

    worse_than: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.02


class Experiment(Section, frozen=True):
    """How an endpoint's arms are compared.

    Attributes:
        alpha: the chance that an interval ever misses the truth.
        margin: a difference that counts as none: a share of the first arm's mean; for `success`, a tenth of it in
            absolute terms.
        guardrail: stops a worse arm.
        feedback: metrics that users send, and which direction is good.
        unit: sources of the unit of assignment, `header:<name>` or one of `UNITS`; the first that a request has counts.
            A request that has none is a unit by itself.
    """

    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    margin: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    guardrail: Guardrail | None = None
    feedback: Annotated[dict[str, Literal["higher", "lower"]], msgspec.Meta(max_length=FEEDBACK_METRICS)] = {}
    unit: tuple[str, ...] = ("header:x-ab-unit", "header:x-session-affinity", "user", "client_request_id", "request")


class Fallback(Section, frozen=True):
    """Whether the other served entities are asked, in list order, after one failed before its first event."""

    enabled: bool = True


class Endpoint(Section, frozen=True):
    """What clients name as `model`.

    Attributes:
        served_entities: percentages add up to 100; the first one is an experiment's control.
        task: what listings say.
        routing: the policy that picks the served entity.
        experiment: how served entities are compared.
        fallback: whether others are asked after a failure.
        inputs, outputs: other names for Triton's tensors.
    """

    served_entities: tuple[ServedEntity, ...]
    task: Task = "chat"
    routing: Routing = "hash"
    experiment: Experiment = Experiment()
    fallback: Fallback = Fallback()
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}

    @property
    def has_experiment(self) -> bool:
        """Whether its requests are counted: it has several served entities, or takes feedback."""
        return len(self.served_entities) > 1 or bool(self.experiment.feedback)

    @property
    def tensors(self) -> TensorNames:
        """The endpoint's names for Triton's tensors."""
        return TensorNames(self.inputs, self.outputs)


class Config(Section, frozen=True):
    """The whole file. Of a backend's options only `kind` is read here; the others are its class's."""

    server: ServerSection = ServerSection()
    backends: dict[str, dict[str, Any]] = {}
    endpoints: dict[str, Endpoint] = {}


def load(path: Path) -> Config:
    """The configuration in a TOML file.

    Raises:
        ConfigError: it cannot be read, or is wrong; the text names file, line and key.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{path}:{error}") from None


def parse(text: str) -> Config:
    """The configuration in the text of a TOML file.

    Raises:
        ConfigError: it is wrong; the text begins with the line's number.
    """
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # `tomllib` has the position only in its text (until Python 3.14).
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        raise ConfigError(f"{found[1] if found else 1}: {error}") from None
    try:
        config = msgspec.convert(fields, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(text, str(error))) from None
    _check(text, config)
    return config


def default(model: str | None = None) -> Config:
    """A configuration of one endpoint over one native backend: the bundled model, or the checkpoint folder `model`."""
    name = Path(model).resolve().name if model else BUNDLED
    backend: dict[str, Any] = {"kind": "native"} | ({"model": str(Path(model).resolve())} if model else {})
    entity = ServedEntity(name=name, backend="local")
    return Config(backends={"local": backend}, endpoints={name: Endpoint(served_entities=(entity,))})


def remote(kind: str, url: str, models: Iterable[str], key_env: str | None = None) -> Config:
    """A configuration of one endpoint for each model of a remote server."""
    backend = {"kind": kind, "url": url} | ({"api_key_env": key_env} if key_env else {})
    endpoints = {name: Endpoint(served_entities=(ServedEntity(name=name, backend="remote"),)) for name in models}
    return Config(backends={"remote": backend}, endpoints=endpoints)


def _check(text: str, config: Config) -> None:
    for name, backend in config.backends.items():
        if not isinstance(backend.get("kind"), str):
            raise ConfigError(f"{_line(text, name)}: backends.{name}: `kind` is missing")
    prefixes = [mount.prefix.rstrip("/") for mount in config.server.mounts]
    if twice := _twice(prefixes):
        raise ConfigError(f"{_line(text, 'mounts')}: server.mounts: two of them have the prefix '{twice}'")
    if port := _twice([config.server.port, *(listener.port for listener in config.server.listeners)]):
        raise ConfigError(f"{_line(text, 'listeners')}: server.listeners: the port {port} is taken twice")
    if config.server.admin_keys_env is not None and config.server.state_file is None:
        raise ConfigError(f"{_line(text, 'admin_keys_env')}: server: `admin_keys_env` needs a `state_file`")
    for name, endpoint in config.endpoints.items():
        if wrong := wrong_endpoint(endpoint, config.backends):
            raise ConfigError(f"{_line(text, name)}: endpoints.{name}{wrong}")


def _twice(values: Sequence[_T]) -> _T | None:
    """The first value that occurs twice; None if none does."""
    return next((value for place, value in enumerate(values) if value in values[:place]), None)


def wrong_endpoint(endpoint: Endpoint, backends: Collection[str]) -> str | None:
    """What is wrong with an endpoint, as a text to append to its name; None if nothing is."""
    arms = endpoint.served_entities
    if not arms:
        return ": `served_entities` is empty"
    for arm in arms:
        if arm.backend not in backends:
            return f".{arm.name}: no backend is called '{arm.backend}'{nearest(arm.backend, backends)}"
        if arm.shadow is not None and arm.traffic_percentage:
            return f".{arm.name}: a shadow answers no client, so its `traffic_percentage` must be 0"
    if arms[0].paired is not None:
        return f".{arms[0].name}: the first served entity is the one that others are `paired` with"
    if (total := sum(arm.traffic_percentage for arm in arms)) != 100:
        return f": traffic percentages add up to {total}, not 100"
    # Names identify arms in assignment, metrics and `endpoint:served`.
    if len({arm.name for arm in arms}) != len(arms):
        return ": two served entities have the same name"
    for unit in endpoint.experiment.unit:
        if unit not in UNITS and not unit.startswith("header:"):
            return f": there is no unit '{unit}'; there are header:<name>, {', '.join(UNITS)}"
    return _wrong_task(endpoint)


def _wrong_task(endpoint: Endpoint) -> str | None:
    first = endpoint.served_entities[0]
    for arm in endpoint.served_entities:
        if (arm.task or endpoint.task) != (first.task or endpoint.task):
            one, other = (
                f"'{first.name}' ({first.task or endpoint.task})",
                f"'{arm.name}' ({arm.task or endpoint.task})",
            )
            return f": served entities must have the same task, and {one} and {other} do not"
    if first.task not in (None, endpoint.task):
        return f".{first.name}: its task is {first.task}, the endpoint's {endpoint.task}"
    return None


# msgspec reports the path in its text only: "... - at `$.endpoints.chat`".
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]+)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_WRONG = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$")


def _explain(text: str, message: str) -> str:
    """msgspec's message with a line number and, for an unknown key, the nearest known one."""
    if unknown := _UNKNOWN.match(message):
        field, path = unknown["field"], unknown["path"] or ""
        where = f"{path}.{field}".removeprefix(".")
        return f"{_line(text, field)}: {where}: unknown field{nearest(field, _all_fields())}"
    wrong = _WRONG.match(message)
    assert wrong is not None, message
    path = wrong["path"] or ""
    return f"{_line(text, path.rpartition('.')[2])}: {path}: {wrong['what']}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A suggestion of the closest known name, as the end of a sentence; "" if none is close."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _all_fields() -> set[str]:
    structs: tuple[type[msgspec.Struct], ...] = (
        Config,
        ServerSection,
        Mount,
        Listener,
        Limits,
        Endpoint,
        ServedEntity,
        Shadow,
        Paired,
        Guardrail,
        Experiment,
        Fallback,
    )
    return {field.name for struct in structs for field in msgspec.structs.fields(struct)}


def _line(text: str, word: str) -> int:
    """Number of the first line that sets `word` or opens a section of that name; 1 if none does."""
    word = re.sub(r"\[.*", "", word)  # `served_entities[0]`: the index is not in the file
    pattern = re.compile(rf"^\s*(\[.*\b)?{re.escape(word)}\b|[{{,]\s*{re.escape(word)}\s*=") if word else None
    for number, line in enumerate(text.splitlines(), 1):
        if pattern is not None and pattern.search(line):
            return number
    return 1
