"""The configuration: one TOML file, decoded whole into structs that forbid what they do not know.

Nothing here starts anything. Names follow Databricks where it has them (endpoint, served_entities, traffic_percentage).
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from schemas.catalog import TensorNames

BUNDLED = "interlingua"
"""The endpoint that answers when nothing was configured."""

UNITS = ("user", "client_request_id", "api_key", "conversation", "request")
"""Where the unit of assignment may come from, beside `header:<name>`."""

FEEDBACK_METRICS = 8
"""The most feedback metrics of an endpoint."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Delay = Annotated[float, msgspec.Meta(ge=0)]


class ConfigError(Exception):
    """The configuration is wrong; the text says where and how."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections."""


class Mount(Section, frozen=True):
    """A path prefix under which every route exists once more, with other dialects (protocol -> dialect)."""

    prefix: Annotated[str, msgspec.Meta(pattern=r"^(/[^/?#{}\s]+)+/?$")]
    dialects: dict[str, str]


class Listener(Section, frozen=True):
    """One more port, with other dialects."""

    port: Port
    dialects: dict[str, str] = {}


class Limits(Section, frozen=True):
    """What one request may cost. Sizes in bytes, times in seconds.

    `max_body` bounds a body, whatever the route; one that carries images, as base64, may have `max_image_body`.
    `stored_responses` bounds all that is kept for `/v1/responses/{id}`; 0 keeps nothing.
    """

    max_body: Count = 16 * 1024 * 1024
    max_image_body: Count = 32 * 1024 * 1024
    body_idle: Seconds = 10.0
    body_total: Seconds = 60.0
    max_concurrent_requests: Count = 1024
    stored_responses: Annotated[int, msgspec.Meta(ge=0)] = 64 * 1024 * 1024


class ServerSection(Section, frozen=True):
    """How the server listens and ends.

    `keys_env` names the environment variable that holds the API keys, separated by commas, `admin_keys_env` the one of
    the keys that may also change endpoints while the server runs; `state_file` keeps these changes.
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
    """How much a shadow may cost, in each worker: copies at a time, and seconds for one. More are not sent."""

    max_concurrent_requests: Count = 4
    timeout: Seconds = 60.0


class Paired(Section, frozen=True):
    """How many of the first arm's answers another arm gives once more, from the same prompt and seed, and how much that
    may cost in each worker: pairs at a time, seconds for one, tokens of prompt and answer together.
    """

    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    max_concurrent_requests: Count = 1
    timeout: Seconds = 60.0
    max_tokens: Count = 2048


class ServedEntity(Section, frozen=True):
    """One arm of an endpoint: a backend, and the name of the model there.

    `task` None = the endpoint's. An arm with 0 % answers direct calls, and where those before it failed. A `shadow`
    gets a copy of each generation request of the endpoint, and answers direct calls only. A `paired` arm, shadow or
    not, is compared with the first arm token by token.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+$", max_length=128)]
    backend: str
    model: str | None = None
    traffic_percentage: Annotated[int, msgspec.Meta(ge=0, le=100)] = 100
    task: Task | None = None
    shadow: Shadow | None = None
    paired: Paired | None = None


class Guardrail(Section, frozen=True):
    """Stops an arm for good whose failures exceed the first arm's by more than `worse_than`, with confidence."""

    worse_than: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.02


class Experiment(Section, frozen=True):
    """How an endpoint's arms are compared.

    `unit` is where the unit of assignment comes from, the first that a request has: `header:<name>` or one of
    `UNITS`. A request that has none is a unit by itself. `alpha` is the chance that an
    interval ever misses the truth, `margin` what makes no difference: a share of the first arm's mean, for `success` a
    tenth of it in absolute terms. `feedback` names metrics that users send themselves, and says which way is good.
    """

    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    margin: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    guardrail: Guardrail | None = None
    feedback: Annotated[dict[str, Literal["higher", "lower"]], msgspec.Meta(max_length=FEEDBACK_METRICS)] = {}
    unit: tuple[str, ...] = ("header:x-ab-unit", "header:x-session-affinity", "user", "client_request_id", "request")


class Fallback(Section, frozen=True):
    """Whether the other served entities are tried, in list order, where one fails before its first event."""

    enabled: bool = True


class Endpoint(Section, frozen=True):
    """What clients name as `model`. `inputs` and `outputs` rename its Triton tensors."""

    served_entities: tuple[ServedEntity, ...]
    task: Task = "chat"
    routing: Routing = "hash"
    experiment: Experiment = Experiment()
    fallback: Fallback = Fallback()
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}

    @property
    def has_experiment(self) -> bool:
        """Whether there is something to compare, or users send feedback."""
        return len(self.served_entities) > 1 or bool(self.experiment.feedback)

    @property
    def tensors(self) -> TensorNames:
        """Its names for Triton's tensors."""
        return TensorNames(self.inputs, self.outputs)


class Config(Section, frozen=True):
    """The whole file. A backend's options are its own: only `kind` is read here."""

    server: ServerSection = ServerSection()
    backends: dict[str, dict[str, Any]] = {}
    endpoints: dict[str, Endpoint] = {}


def load(path: Path) -> Config:
    """Read a file.

    Raises:
        ConfigError: it cannot be read, or is wrong; the text names file, line and field.
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
    """Read a file's text.

    Raises:
        ConfigError: it is wrong; the text begins with the line's number.
    """
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        raise ConfigError(f"{found[1] if found else 1}: {error}") from None
    try:
        config = msgspec.convert(fields, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(text, str(error))) from None
    _check(text, config)
    return config


def default(model: str | None = None) -> Config:
    """One endpoint over one native backend: the bundled model, or the checkpoint folder `model`."""
    name = Path(model).resolve().name if model else BUNDLED
    backend: dict[str, Any] = {"kind": "native"} | ({"model": str(Path(model).resolve())} if model else {})
    entity = ServedEntity(name=name, backend="local")
    return Config(backends={"local": backend}, endpoints={name: Endpoint(served_entities=(entity,))})


def remote(kind: str, url: str, models: Iterable[str], key_env: str | None = None) -> Config:
    """One endpoint for each of the models of one remote server."""
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
    if twice := _twice([config.server.port, *(listener.port for listener in config.server.listeners)]):
        raise ConfigError(f"{_line(text, 'listeners')}: server.listeners: the port {twice} is taken twice")
    if config.server.admin_keys_env is not None and config.server.state_file is None:
        raise ConfigError(f"{_line(text, 'admin_keys_env')}: server: `admin_keys_env` needs a `state_file`")
    for name, endpoint in config.endpoints.items():
        if wrong := wrong_endpoint(endpoint, config.backends):
            raise ConfigError(f"{_line(text, name)}: endpoints.{name}{wrong}")


def _twice(values: list[Any]) -> Any:
    """The first value that stands there twice; None if none does."""
    return next((value for place, value in enumerate(values) if value in values[:place]), None)


def wrong_endpoint(endpoint: Endpoint, backends: Collection[str]) -> str | None:
    """What is wrong with an endpoint over these backends, to be read after its name; None if nothing is."""
    arms = endpoint.served_entities
    if not arms:
        return ": `served_entities` is empty"
    for arm in arms:
        if arm.backend not in backends:
            return f".{arm.name}: no backend is called '{arm.backend}'{nearest(arm.backend, backends)}"
        if arm.shadow is not None and arm.traffic_percentage:
            return f".{arm.name}: a shadow answers nobody, so that its `traffic_percentage` must be 0"
    if arms[0].paired is not None:
        return f".{arms[0].name}: the first served entity is the one that others are `paired` with"
    if (total := sum(arm.traffic_percentage for arm in arms)) != 100:
        return f": traffic percentages add up to {total}, not 100"
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


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]+)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_WRONG = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$")


def _explain(text: str, message: str) -> str:
    """msgspec's words, with a line's number and, for an unknown field, the nearest known one."""
    if unknown := _UNKNOWN.match(message):
        field, path = unknown["field"], unknown["path"] or ""
        where = f"{path}.{field}".removeprefix(".")
        return f"{_line(text, field)}: {where}: unknown field{nearest(field, _all_fields())}"
    wrong = _WRONG.match(message)
    assert wrong is not None, message
    path = wrong["path"] or ""
    return f"{_line(text, path.rpartition('.')[2])}: {path}: {wrong['what']}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that may have been meant, as the end of a sentence; "" if none is near."""
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
    """The first line that sets `word` or opens a section of that name; 1 if none does."""
    word = re.sub(r"\[.*", "", word)
    pattern = re.compile(rf"^\s*(\[.*\b)?{re.escape(word)}\b|[{{,]\s*{re.escape(word)}\s*=") if word else None
    for number, line in enumerate(text.splitlines(), 1):
        if pattern is not None and pattern.search(line):
            return number
    return 1
