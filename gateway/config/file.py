"""The configuration file: TOML, decoded into structs that forbid unknown keys.

Checks that need backends or protocols are in `gateway.check`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from gateway.config.aliases import wrong_aliases
from gateway.config.base import ConfigError, Section, nearest
from gateway.config.batches import BatchesSection
from gateway.config.endpoint import Endpoint, ServedEntity, wrong_in_endpoint
from gateway.config.positions import KeyPath, Positions
from gateway.config.server import ServerSection
from gateway.config.state import StateSection
from gateway.config.structure import Problem, dotted_name, examine, show
from gateway.config.syntax import foreign, read_toml
from gateway.config.telemetry import Telemetry
from gateway.config.usage import UsageSection

_T = TypeVar("_T")

BUNDLED = "interlingua"
"""Name of the endpoint that serves the bundled model where nothing is configured."""


class Config(Section, frozen=True):
    """The whole file. Of a backend's or filter's options only `kind` is read here; the others are its class's."""

    server: ServerSection = ServerSection()
    backends: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    endpoints: dict[str, Endpoint] = msgspec.field(default_factory=dict)
    filters: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    telemetry: Telemetry | None = None
    usage: UsageSection | None = None
    state: StateSection | None = None
    batches: BatchesSection | None = None

    @property
    def is_changeable(self) -> bool:
        """Whether endpoints can be changed while serving: there is something that keeps the changes."""
        return self.server.state_file is not None or self.state is not None


class Source(NamedTuple):
    """What a configuration was read from: the file's name, and where its keys stand; None if it is of no text."""

    name: str
    positions: Positions | None

    def refusal(self, problems: Iterable[Problem]) -> ConfigError:
        """An error with all problems, a line each, in the order of the file."""
        if self.positions is None:
            return ConfigError("\n".join(dict.fromkeys(text for _, text in problems)))
        found = sorted((self.positions.line(path), text) for path, text in problems)
        prefix = f"{self.name}:" if self.name else ""
        return ConfigError("\n".join(dict.fromkeys(f"{prefix}{line}: {text}" for line, text in found)))


def load(path: Path) -> Config:
    """The configuration in a TOML file.

    Raises:
        ConfigError: it cannot be read, is wrong or cut; the text names file, line and key of every mistake.
    """
    config, problems, source = examine_file(path)
    if problems:
        raise source.refusal(problems)
    return config


def examine_file(path: Path) -> tuple[Config, list[Problem], Source]:
    """The configuration in a TOML file without what is wrong in it, and what is wrong.

    Raises:
        ConfigError: it cannot be read, or is no TOML.
    """
    try:
        text = path.read_text("utf-8-sig")  # editors on Windows put a byte order mark in front
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: cannot be read: it is no text in UTF-8 ({error.reason} at byte {error.start})"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        _check_whole(text)
        config, problems, positions = examine_text(text)
    except ConfigError as error:
        raise ConfigError(f"{path}:{error}") from None
    return config, problems, Source(str(path), positions)


def _check_whole(text: str) -> None:
    """Reject a file that was cut while it was written: `port = 80` may be the beginning of `port = 8000`."""
    if not text.endswith("\n") and not foreign(text):
        last = text.count("\n") + 1
        raise ConfigError(f"{last}: the file is empty or cut: its last line has no line end")


def parse(text: str) -> Config:
    """The configuration in the text of a TOML file.

    Raises:
        ConfigError: it is wrong; each line of the error begins with a line's number.
    """
    config, problems, positions = examine_text(text)
    if problems:
        raise Source("", positions).refusal(problems)
    return config


def examine_text(text: str) -> tuple[Config, list[Problem], Positions]:
    """The configuration in a text without what is wrong in it, what is wrong, and where its keys stand.

    Raises:
        ConfigError: it is no TOML.
    """
    fields = read_toml(text)
    positions = Positions(text)
    problems: list[Problem] = []
    config = msgspec.convert(examine(fields, Config, (), problems), Config)
    # What is left of a section that is wrong would be called wrong once more.
    broken = {path[:2] for path, _ in problems}
    names = fields.get("endpoints")
    named = set(names) if isinstance(names, dict) else set()
    problems += [problem for problem in _contradictions(config, named) if problem.path[:2] not in broken]
    if not problems and not config.endpoints and not config.backends and not config.is_changeable:
        problems.append(Problem((), "there are no endpoints and no backends: nothing would be served"))
    return config, problems, positions


def default(
    model: str | None = None, names: Sequence[str] = (), options: Mapping[str, Any] = MappingProxyType({})
) -> Config:
    """A configuration of one endpoint over one native backend: the bundled model, or `model`.

    Args:
        model: what to serve.
        names: the first is the endpoint's name, the others are aliases; without them it is called like the folder.
        options: further options of the backend.
    """
    name, *aliases = names or (Path(model).resolve().name if model else BUNDLED,)
    backend: dict[str, Any] = {"kind": "native"} | ({"model": model} if model else {}) | dict(options)
    entity = ServedEntity(name=name, backend="local")
    endpoint = Endpoint(served_entities=(entity,), aliases=tuple(aliases))
    return Config(backends={"local": backend}, endpoints={name: endpoint})


def remote(kind: str, url: str, models: Sequence[str], key_env: str | None = None, names: Sequence[str] = ()) -> Config:
    """A configuration of one endpoint for each model of a remote server.

    The first of `names` is the endpoint's name, the others are aliases; without them it is called like the model.

    Raises:
        ConfigError: there are `names`, and the server has several models.
    """
    backend = {"kind": kind, "url": url} | ({"api_key_env": key_env} if key_env else {})
    if names and len(models) != 1:
        raise ConfigError(
            f"--served-model-name names one model, and the server at {url} has {len(models)}: "
            "name them as endpoints of a configuration file"
        )
    if names:
        entity = ServedEntity(name=_entity_name(names[0]), backend="remote", model=models[0])
        endpoints = {names[0]: Endpoint(served_entities=(entity,), aliases=tuple(names[1:]))}
    else:
        endpoints = endpoints_for("remote", models)
    return Config(backends={"remote": backend}, endpoints=endpoints)


def endpoints_for(backend: str, models: Sequence[str]) -> dict[str, Endpoint]:
    """An endpoint for each model of a backend, called like the model."""
    return {
        name: Endpoint(served_entities=(ServedEntity(name=_entity_name(name), backend=backend, model=name),))
        for name in models
    }


def _entity_name(model: str) -> str:
    """A model's name as that of a served entity, which is sent in a header and has no slashes."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", model)[:128]


def _contradictions(config: Config, endpoints: Collection[str]) -> Iterator[Problem]:
    """What contradicts itself. `endpoints` are all names in the file, those of wrong endpoints included."""
    for name, backend in config.backends.items():
        if not isinstance(backend.get("kind"), str):
            hint = dotted_name(("backends", name), backend, {"kind", "url"})
            yield Problem(("backends", name), f"backends.{name}: `kind` is missing{hint}")
    yield from _wrong_in_server(config.server)
    if config.server.export is not None and config.server.export.files <= config.server.workers:
        # Workers write side by side: with fewer files, one would remove what another is writing.
        text = "server.export: `files` must be more than the number of workers"
        yield Problem(("server", "export", "files"), text)
    if config.usage is not None and "://" in (config.usage.database or "") and not config.usage.is_postgres:
        text = "usage.database: it must be a file of SQLite, or a URL that begins with postgresql://"
        yield Problem(("usage", "database"), text)
    yield from _wrong_filters(config)
    yield from _wrong_caches(config)
    if "" in config.endpoints:
        yield Problem(("endpoints", ""), "endpoints: the name of an endpoint is empty: no client could ask for it")
    for name, endpoint in config.endpoints.items():
        for path, wrong in wrong_in_endpoint(endpoint, config.backends):
            yield Problem(("endpoints", name, *path), f"endpoints.{name}{wrong}")
    if clash := wrong_aliases(config.endpoints):
        yield Problem(("endpoints", clash[0], "aliases"), f"endpoints.{clash[0]}{clash[1]}")
    if not config.is_changeable:
        yield from _stateless(config, endpoints)


def _wrong_filters(config: Config) -> Iterator[Problem]:
    for name, section in config.filters.items():
        if not isinstance(section.get("kind"), str):
            yield Problem(("filters", name), f"filters.{name}: `kind` is missing")
    for name, endpoint in config.endpoints.items():
        for unknown in sorted({*endpoint.filters} - {*config.filters}):
            text = f"endpoints.{name}.filters: there is no filter '{unknown}'{nearest(unknown, config.filters)}"
            yield Problem(("endpoints", name, "filters"), text)


def _wrong_caches(config: Config) -> Iterator[Problem]:
    for name, endpoint in config.endpoints.items():
        if endpoint.cache is not None and endpoint.cache.store == "state" and config.state is None:
            text = f'endpoints.{name}.cache: `store = "state"` needs a section `state`'
            yield Problem(("endpoints", name, "cache", "store"), text)


def _wrong_in_server(server: ServerSection) -> Iterator[Problem]:
    prefixes = [mount.prefix.rstrip("/") for mount in server.mounts]
    if (place := _second(prefixes)) is not None:
        text = f"server.mounts: two of them have the prefix '{prefixes[place]}'"
        yield Problem(("server", "mounts", place), text)
    if server.ssl_certfile is None:
        for key in ("ssl_keyfile", "ssl_keyfile_password_env", "ssl_ca_certs"):
            if getattr(server, key) is not None:
                yield Problem(("server", key), f"server: `{key}` needs an `ssl_certfile`")
    ports = [server.port, *(listener.port for listener in server.listeners)]
    if (place := _second(ports)) is not None:
        text = f"server.listeners: the port {ports[place]} is taken twice"
        yield Problem(("server", "listeners", place - 1), text)
    if server.grpc is not None and server.grpc.port and server.grpc.port in ports:
        yield Problem(("server", "grpc", "port"), f"server.grpc: the port {server.grpc.port} is taken twice")


def _stateless(config: Config, endpoints: Collection[str]) -> Iterator[Problem]:
    """What needs a state file: changes while serving, and names of endpoints that may be created later."""
    server = config.server
    for name, endpoint in config.endpoints.items():
        if endpoint.experiment.ramp is not None:
            text = f"endpoints.{name}: a `ramp` needs a `state_file`, which keeps it"
            yield Problem(("endpoints", name, "experiment", "ramp"), text)
    # Without endpoints, backends serve the models that they list, whose names are not known here.
    if not endpoints:
        return
    yield from missing_endpoints(server, endpoints)


def missing_endpoints(server: ServerSection, endpoints: Collection[str]) -> Iterator[Problem]:
    """The default, the mounts and the listeners that lead to none of these endpoints."""
    named: dict[KeyPath, str | None] = {("default",): server.default}
    named |= {("mounts", place, "endpoint"): mount.endpoint for place, mount in enumerate(server.mounts)}
    named |= {("listeners", place, "endpoint"): each.endpoint for place, each in enumerate(server.listeners)}
    for path, missing in named.items():
        if missing is not None and missing not in endpoints:
            where = show(("server", *path))
            yield Problem(("server", *path), f"{where}: there is no endpoint '{missing}'{nearest(missing, endpoints)}")


def _second(values: Sequence[_T]) -> int | None:
    """The place of the first value that occurred before; None if none did."""
    return next((place for place, value in enumerate(values) if value in values[:place]), None)
