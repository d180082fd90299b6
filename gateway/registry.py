"""The registered protocols and kinds of backends: entry points, which packages installed beside this one can add to."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import msgspec

from adapters.base import Adapter
from backends.base import Backend, NotPrepared
from backends.standby import EngineCommand, StartsEngines
from gateway.config import Config, ConfigError, FilterSettings, nearest
from gateway.filters.base import MakesFilter
from gateway.filters.guarded import GuardedFilter


@functools.cache
def _registered(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group (pyproject.toml): a package installed beside this one can add to it."""
    return {point.name: point for point in _installed().select(group=group)}


@functools.cache  # a scan reads the metadata of every installed package
def _installed() -> Any:
    return entry_points()  # an `EntryPoints`, or its forerunner in Python 3.11, which has the same `select`


def adapters() -> dict[str, Adapter]:
    """Every registered protocol."""
    return {name: point.load() for name, point in _registered("gateway.adapters").items()}


def backend_class(name: str, kind: str) -> Callable[[str, Mapping[str, Any]], Backend]:
    """The backend class registered for a kind.

    Args:
        name: the backend's name, for the error.
        kind: what the configuration asks for.

    Raises:
        ConfigError: no backend of this kind is registered.
    """
    found = _registered("gateway.backends")
    if kind not in found:
        from backends.remote.kinds import SPOKEN_BY

        hint = f"; for {kind} say '{SPOKEN_BY[kind]}'" if kind in SPOKEN_BY else nearest(kind, found)
        raise ConfigError(
            f"backends.{name}: there is no backend of kind '{kind}'; there are {', '.join(sorted(found))}{hint}"
        )
    try:
        made: Callable[[str, Mapping[str, Any]], Backend] = found[kind].load()
    except ModuleNotFoundError as error:
        what = f"kind '{kind}' needs the package '{error.name}', which a gateway alone does not bring"
        raise ConfigError(f"backends.{name}: {what}: pip install 'interlingua[engine]'") from None
    return made


def make_backends(config: Config) -> dict[str, Backend]:
    """The configured backends, not started.

    Raises:
        ConfigError: a kind or one of its options is wrong.
    """
    made: dict[str, Backend] = {}
    for name, section in config.backends.items():
        options = {key: value for key, value in section.items() if key != "kind"}
        try:
            made[name] = backend_class(name, section["kind"])(name, options)
        except msgspec.ValidationError as error:
            raise ConfigError(f"backends.{name}: {error}") from None
    return made


def on_ray(config: Config, address: str) -> Config:
    """The configuration with its engines on the nodes of a Ray cluster, for the backends that have engines.

    Raises:
        ConfigError: no backend of a kind is registered.
    """
    made = {}
    for name, section in config.backends.items():
        kind = section.get("kind")
        place = getattr(backend_class(name, kind), "on_ray", None) if isinstance(kind, str) else None
        made[name] = section if place is None else place(section, address)
    return msgspec.structs.replace(config, backends=made)


def with_engines(config: Config, folder: Path) -> tuple[Config, dict[str, EngineCommand]]:
    """The configuration for workers, with the addresses of engines, and the commands that start engines, by what the
    log calls them.

    Args:
        config: as it was read.
        folder: of the engines' sockets.

    Raises:
        ConfigError: a kind or one of its options is wrong.
    """
    commands: dict[str, EngineCommand] = {}
    backends: dict[str, dict[str, Any]] = {}
    for name, section in config.backends.items():
        backends[name] = section
        made = backend_class(name, section["kind"])
        # A backend class that starts no engines runs in the worker.
        if not isinstance(made, StartsEngines):
            continue
        options = {key: value for key, value in section.items() if key != "kind"}
        # Part of the sockets' paths, so that changed options make other paths and the old engines keep their own.
        digest = hashlib.sha256(msgspec.json.encode(options, order="sorted")).hexdigest()[:8]
        try:
            engines = made.engine_commands(options, folder / f"{name}-{digest}")
        except msgspec.ValidationError as error:
            raise ConfigError(f"backends.{name}: {error}") from None
        if engines:
            backends[name] = {"kind": section["kind"], **made.shared_options(options, engines)}
            called = [f"engine {name}", *(f"engine {name}/{number}" for number in range(1, len(engines)))]
            commands |= dict(zip(called, engines, strict=True))
    return msgspec.structs.replace(config, backends=backends), commands


def make_filter(name: str, section: Mapping[str, Any]) -> GuardedFilter:
    """A configured filter.

    Raises:
        ConfigError: its kind or one of its options is wrong.
    """
    known, kind = _registered("gateway.filters"), section["kind"]
    if kind not in known:
        hint = nearest(kind, known)
        raise ConfigError(f"filters.{name}: there is no filter of kind '{kind}'; there are {', '.join(known)}{hint}")
    made: MakesFilter = known[kind].load()
    common = FilterSettings.__struct_fields__
    try:
        settings = msgspec.convert({key: section[key] for key in common if key in section}, FilterSettings)
        options = {key: value for key, value in section.items() if key not in (*common, "kind")}
        return GuardedFilter(name, made(msgspec.convert(options, made.Options)), settings)
    except ValueError as error:  # msgspec's and the filter's own
        raise ConfigError(f"filters.{name}: {error}") from None


def prepare(config: Config, report: Callable[[str], None], *, fetch: bool) -> Config:
    """The configuration with the options that backends have made of theirs: models fetched, formats converted.

    Args:
        config: as it was read.
        report: called with a sentence before each step that takes time.
        fetch: whether anything may be fetched.

    Raises:
        ConfigError: what a backend's options name cannot be had or read.
    """
    made = {}
    for name, section in config.backends.items():
        prepare_options = getattr(backend_class(name, section["kind"]), "prepare", None)
        try:
            made[name] = section if prepare_options is None else prepare_options(section, report, fetch=fetch)
        except NotPrepared as error:
            raise ConfigError(f"backends.{name}: {error}") from None
    return msgspec.structs.replace(config, backends=made)
