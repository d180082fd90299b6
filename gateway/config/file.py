"""The configuration file: TOML, decoded into structs that forbid unknown keys.

Checks that need backends or protocols are in `gateway.app.validate`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gateway.config.aliases import wrong_aliases
from gateway.config.base import ConfigError, Section, nearest
from gateway.config.endpoint import (
    Endpoint,
    Experiment,
    Fallback,
    FeedbackMetric,
    Guardrail,
    MetricGuardrail,
    Paired,
    Ramp,
    ServedEntity,
    Shadow,
    wrong_endpoint,
)
from gateway.config.limit import EndpointLimit, Price
from gateway.config.server import Export, Limits, Listener, Mount, ServerSection

_T = TypeVar("_T")

BUNDLED = "interlingua"
"""Name of the endpoint that serves the bundled model where nothing is configured."""


class Config(Section, frozen=True):
    """The whole file. Of a backend's options only `kind` is read here; the others are its class's."""

    server: ServerSection = ServerSection()
    backends: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    endpoints: dict[str, Endpoint] = msgspec.field(default_factory=dict)


def load(path: Path) -> Config:
    """The configuration in a TOML file.

    Raises:
        ConfigError: it cannot be read, is wrong or cut; the text names file, line and key.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        _check_whole(text)
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{path}:{error}") from None


def _check_whole(text: str) -> None:
    """Reject a file that was cut while it was written: `port = 80` may be the beginning of `port = 8000`."""
    if not text.endswith("\n"):
        last = text.count("\n") + 1
        raise ConfigError(f"{last}: the file is empty or cut: its last line has no line end")


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


def default(model: str | None = None, names: Sequence[str] = (), *, speculation: bool = False) -> Config:
    """A configuration of one endpoint over one native backend: the bundled model, or `model`.

    With `speculation` its engine verifies draft tokens.

    The first of `names` is the endpoint's name, the others are aliases; without them it is called like the folder.
    """
    name, *aliases = names or (Path(model).resolve().name if model else BUNDLED,)
    backend: dict[str, Any] = {"kind": "native"} | ({"model": model} if model else {})
    backend |= {"speculation": True} if speculation else {}
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
        entity = ServedEntity(name=names[0], backend="remote", model=models[0])
        endpoints = {names[0]: Endpoint(served_entities=(entity,), aliases=tuple(names[1:]))}
    else:
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
    if config.server.export is not None and config.server.export.files <= config.server.workers:
        # Workers write side by side: with fewer files, one would remove what another is writing.
        raise ConfigError(f"{_line(text, 'export')}: server.export: `files` must be more than the number of workers")
    _check_endpoints(text, config)
    if config.server.state_file is None:
        _check_stateless(text, config)
    _check_defaults(text, config)
    # With a state file, the first endpoint may be one that a client creates.
    if not config.endpoints and config.server.state_file is None:
        raise ConfigError("1: there are no endpoints: nothing would be served")


def _check_endpoints(text: str, config: Config) -> None:
    for name, endpoint in config.endpoints.items():
        if wrong := wrong_endpoint(endpoint, config.backends):
            raise ConfigError(f"{_line(text, name)}: endpoints.{name}{wrong}")
    if clash := wrong_aliases(config.endpoints):
        raise ConfigError(f"{_line(text, clash[0])}: endpoints.{clash[0]}{clash[1]}")


def _check_stateless(text: str, config: Config) -> None:
    """Refuse what needs a state file."""
    if config.server.admin_keys_env is not None and config.server.keys_file is None:
        line = _line(text, "admin_keys_env")
        raise ConfigError(
            f"{line}: server: `admin_keys_env` needs a `state_file` or a `keys_file`, which admins change"
        )
    for name, endpoint in config.endpoints.items():
        if endpoint.experiment.ramp is not None:
            raise ConfigError(f"{_line(text, 'ramp')}: endpoints.{name}: a `ramp` needs a `state_file`, which keeps it")


def _check_defaults(text: str, config: Config) -> None:
    """Refuse defaults that are no endpoints. With a state file, the endpoint may be created later."""
    server = config.server
    named = {"default": server.default}
    named |= {f"mounts[{place}].endpoint": mount.endpoint for place, mount in enumerate(server.mounts)}
    named |= {f"listeners[{place}].endpoint": listener.endpoint for place, listener in enumerate(server.listeners)}
    for key, name in named.items():
        if name is not None and name not in config.endpoints and server.state_file is None:
            line = _line(text, key.rpartition(".")[2])
            raise ConfigError(f"{line}: server.{key}: there is no endpoint '{name}'{nearest(name, config.endpoints)}")


def _twice(values: Sequence[_T]) -> _T | None:
    """The first value that occurs twice; None if none does."""
    return next((value for place, value in enumerate(values) if value in values[:place]), None)


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


def _all_fields() -> set[str]:
    structs: tuple[type[msgspec.Struct], ...] = (
        Config,
        ServerSection,
        Mount,
        Listener,
        Limits,
        Export,
        Endpoint,
        ServedEntity,
        Shadow,
        Paired,
        Guardrail,
        MetricGuardrail,
        Ramp,
        Experiment,
        FeedbackMetric,
        Fallback,
        EndpointLimit,
        Price,
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
