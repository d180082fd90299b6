"""Everything for which `gateway serve` refuses a configuration: all mistakes at once, with their lines.

`serve` and `check` both read configurations here, so that they cannot disagree.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from backends.base import Backend, NotPrepared
from backends.transport.url import port_of, split_url
from gateway.access.certificates import Certificates
from gateway.access.keys import keys_from, make_keys
from gateway.config import (
    Config,
    ConfigError,
    KeyPath,
    Problem,
    ServerSection,
    Source,
    examine,
    examine_file,
    lacks_package,
    show,
)
from gateway.deployment.deployments import generating, mixed_kinds
from gateway.deployment.state_file import LiveDeployments
from gateway.experiments.metrics import wrong_metrics
from gateway.mounts import Mounts
from gateway.observability.telemetry import MISSING, is_installed
from gateway.registry import adapters, backend_class, make_filter
from gateway.storage.row_files import is_writable
from gateway.storage.shared.state_server import server_url

Change = Callable[[Config], Config]


def read_file(
    path: Path, change: Change = lambda config: config, *, offline: bool = False, insecure: bool = False
) -> Config:
    """The configuration in a file, as it is served.

    Args:
        path: the file.
        change: what options of the command line change in it.
        offline: leaves out what depends on the machine: variables, files, addresses, and installed packages.
        insecure: allows a public address without keys.

    Raises:
        ConfigError: it would not be served; the text has a line for each mistake.
    """
    config, problems, source = examine_file(path)
    config = change(config)
    if offline:  # the state file is on the machine that serves
        config = replace(config, server=replace(config.server, state_file=None))
    skipped = [str(path[0]) for path, _ in problems if path]
    problems += problems_of(config, offline=offline, insecure=insecure, skipped=skipped)
    if problems:
        raise source.refusal(problems)
    return config


def validate(config: Config, *, offline: bool = False, insecure: bool = True) -> None:
    """Pass a configuration that can be served; the arguments are those of `read_file`.

    Raises:
        ConfigError: it cannot; the text has a line for each mistake.
    """
    if problems := list(problems_of(config, offline=offline, insecure=insecure)):
        raise Source("", None).refusal(problems)


def problems_of(
    config: Config, *, offline: bool = False, insecure: bool = True, skipped: Collection[str] = ()
) -> Iterator[Problem]:
    """What is wrong with a configuration whose structure is right.

    Args:
        config: the configuration.
        offline: as of `read_file`.
        insecure: as of `read_file`.
        skipped: sections that are known to be wrong: what is left of them would be called wrong once more.
    """
    made: dict[str, Backend] = {}
    for name, section in config.backends.items():
        if isinstance(section.get("kind"), str):
            yield from _backend(name, section, offline, made)
    yield from _filters(config)
    if "server" not in skipped:
        yield from _loops(config)
        yield from _dialects(config)
    if not {"server", "endpoints"} & {*skipped}:
        yield from _deployments(config, made, offline)
    wrong = [(path, host) for path, host in _hosts(config.server) if not _is_host(host)]
    for path, host in wrong:
        yield Problem(path, f"{show(path)}: '{host}' is no address: host and port are two keys, without http://")
    if not wrong and not config.server.is_private and not config.server.needs_key and not insecure:
        reached = f"server.host {config.server.host}: other machines can reach this address"
        what_to_do = "set keys_env (or pass --keys-env NAME) or keys_file, or pass --insecure"
        yield Problem(("server", "host"), f"{reached}; {what_to_do}")
    if config.telemetry is not None and not is_installed() and not offline:
        yield Problem(("telemetry",), f"telemetry: {MISSING}")
    if not offline:
        yield from _machine(config)


def _backend(name: str, section: Mapping[str, Any], offline: bool, made: dict[str, Backend]) -> Iterator[Problem]:
    path: KeyPath = ("backends", name)
    options = {key: value for key, value in section.items() if key != "kind"}
    try:
        make: Any = backend_class(name, section["kind"])
    except ConfigError as error:
        yield Problem((*path, "kind"), str(error))
        return
    try:
        made[name] = make(name, options)
    except msgspec.ValidationError as error:
        found: list[Problem] = []
        examine(options, make.Options, path, found)
        yield from found or [Problem(path, f"backends.{name}: {error}")]
        return
    if offline:
        return
    # Kinds of other packages need have neither.
    if (problems := getattr(make, "problems", None)) is not None:
        for inner, text in problems(options):
            yield Problem((*path, *inner), f"backends.{name}: {text}")
    if (check := getattr(make, "check", None)) is not None:
        try:
            check(section)
        except NotPrepared as error:
            yield Problem((*path, "model"), f"backends.{name}: {error}")


def _filters(config: Config) -> Iterator[Problem]:
    for name, section in config.filters.items():
        if isinstance(section.get("kind"), str):
            try:
                make_filter(name, section)
            except ConfigError as error:
                yield Problem(("filters", name), str(error))


def _loops(config: Config) -> Iterator[Problem]:
    """Backends that are this server itself: one request would come back until no more are admitted."""
    server = config.server
    own = [(server.host, server.port), *((each.host or server.host, each.port) for each in server.listeners)]
    if server.grpc is not None:
        own.append((server.grpc.host or server.host, server.grpc.port))
    for name, section in config.backends.items():
        urls = [section.get("url"), *(section.get("urls") or ())]
        for url in urls if section.get("unix_socket") is None else ():
            if any(_is_at(url, host, port) for host, port in own if port):
                path: KeyPath = ("backends", name, "url" if url == urls[0] else "urls")
                what_to_do = "give the server another `port`, or the backend the URL of the server behind it"
                yield Problem(path, f"backends.{name}: {url} is an address of this gateway itself; {what_to_do}")


def _is_at(url: object, host: str, port: int) -> bool:
    """Whether a URL is surely that of a server on this machine which listens there."""
    try:
        parts = split_url(url) if isinstance(url, str) else None
        return parts is not None and port_of(parts) == port and parts.hostname in (host, *_ALSO_AT.get(host, ()))
    except ValueError:  # reported by the backend
        return False


_ALSO_AT = {
    "127.0.0.1": ("localhost", "0.0.0.0"),
    "0.0.0.0": ("localhost", "127.0.0.1"),
    "::1": ("localhost", "::"),
    "::": ("localhost", "::1"),
    "localhost": ("127.0.0.1", "::1", "0.0.0.0", "::"),
}
"""By what other names a client of this machine reaches a server that listens on one."""


def _dialects(config: Config) -> Iterator[Problem]:
    """Each part by itself, and then all together: `Mounts` stops at the first mistake."""
    server = config.server
    bare = replace(server, mounts=(), listeners=(), dialects={}, dialect_options={})
    parts: dict[KeyPath, Any] = {
        ("server", "dialects", protocol): replace(bare, dialects={protocol: dialect})
        for protocol, dialect in server.dialects.items()
    }
    parts |= {
        ("server", "dialect_options", dialect): replace(bare, dialect_options={dialect: fields})
        for dialect, fields in server.dialect_options.items()
    }
    parts |= {("server", "mounts", place): replace(bare, mounts=(each,)) for place, each in enumerate(server.mounts)}
    parts |= {
        ("server", "listeners", place): replace(bare, listeners=(each,)) for place, each in enumerate(server.listeners)
    }
    found = False
    for path, part in (parts | {("server",): server}).items():
        if found and path == ("server",):
            return
        try:
            Mounts(adapters(), replace(config, server=part))
        except ConfigError as error:
            found = True
            yield Problem(path, str(error))


def _deployments(config: Config, made: Mapping[str, Backend], offline: bool) -> Iterator[Problem]:
    try:
        deployments = LiveDeployments(config).deployments
    except ConfigError as error:
        yield Problem(("server", "state_file"), str(error))
        return
    for name, deployed in deployments.items():
        if wrong := wrong_metrics(deployed.serving):
            yield Problem(("endpoints", name, "experiment"), f"endpoints.{name}{wrong}")
        if not offline and (lacking := lacks_package(deployed.serving)):
            yield Problem(("endpoints", name), f"endpoints.{name}{lacking}")
    # Only of the file: an endpoint that was changed while serving must not keep the server from starting again.
    generates = generating(made)
    for name, endpoint in config.endpoints.items():
        if wrong := mixed_kinds(endpoint, generates):
            yield Problem(("endpoints", name), f"endpoints.{name}{wrong}")


def _machine(config: Config) -> Iterator[Problem]:
    """What the machine lacks: variables, folders, the address."""
    server = config.server
    for key in ("keys_env", "admin_keys_env"):
        try:
            keys_from(getattr(server, key))
        except ConfigError as error:
            yield Problem(("server", key), str(error))
    if server.keys_file is not None:
        try:
            make_keys(replace(server, keys_env=None, admin_keys_env=None))
        except ConfigError as error:
            yield Problem(("server", "keys_file"), str(error))
    if server.ssl_certfile is not None:
        try:
            Certificates(server)
        except ConfigError as error:
            yield Problem(("server", "ssl_certfile"), str(error))
    yield from _folders(config)
    yield from _usage(config)
    yield from _state(config)
    yield from _grpc(server)
    if not _is_host(server.host):
        return
    try:
        with socket.socket(socket.AF_INET6 if ":" in server.host else socket.AF_INET) as probe:
            probe.bind((server.host, 0))
    except OSError as error:
        text = f"server.host: cannot listen on {server.host}: {error.strerror}"
        yield Problem(("server", "host"), text)


def _folders(config: Config) -> Iterator[Problem]:
    server = config.server
    kept: dict[KeyPath, str | None] = {("server", "storage_folder"): server.storage_folder}
    if server.export is not None:
        kept["server", "export", "folder"] = server.export.folder
    if config.batches is not None:
        kept["batches", "folder"] = config.batches.resolved(server)
    for path, folder in kept.items():
        if folder is not None and not is_writable(Path(folder).absolute()):
            yield Problem(path, f"{show(path)}: the folder '{folder}' cannot be written to")


def _hosts(server: ServerSection) -> Iterator[tuple[KeyPath, str]]:
    """The hosts to listen on, each with its place."""
    yield ("server", "host"), server.host
    for place, listener in enumerate(server.listeners):
        if listener.host is not None:
            yield ("server", "listeners", place, "host"), listener.host
    if server.grpc is not None and server.grpc.host is not None:
        yield ("server", "grpc", "host"), server.grpc.host


def _is_host(host: str) -> bool:
    """Whether it can be an address or a name: no URL, no address with a port, and IDNA can encode it."""
    try:
        host.encode("idna")  # as `socket.bind` does, which raises TypeError if it cannot, and for NUL
    except UnicodeError:
        return False
    return not any(mark in host for mark in "/\0") and not (host.count(":") == 1 and host.rpartition(":")[2].isdigit())


def _grpc(server: ServerSection) -> Iterator[Problem]:
    if server.grpc is None:
        return
    if find_spec("grpc") is None or find_spec("google.protobuf") is None:
        text = "server.grpc: needs grpcio and protobuf: pip install 'interlingua[grpc]'"
        yield Problem(("server", "grpc"), text)
    if server.ssl_keyfile_password_env is not None and server.grpc.tls:
        text = (
            "server.grpc: gRPC reads no encrypted key: give `ssl_keyfile` a plain one, or `grpc` the option tls = false"
        )
        yield Problem(("server", "grpc"), text)


def _usage(config: Config) -> Iterator[Problem]:
    if (settings := config.usage) is None:
        return
    database, waiting = settings.resolved(config.server)
    if settings.is_postgres and find_spec("psycopg") is None:
        text = "usage.database: PostgreSQL needs psycopg: pip install 'interlingua[postgres]'"
        yield Problem(("usage", "database"), text)
    folder = (Path(waiting) if settings.is_postgres else Path(database)).absolute().parent
    if not is_writable(folder):
        yield Problem(("usage", "database"), f"usage.database: the folder '{folder}' cannot be written to")


def _state(config: Config) -> Iterator[Problem]:
    if (settings := config.state) is None:
        return
    if settings.lacks_package is not None:
        yield Problem(("state",), settings.lacks_package)
    try:
        server_url(settings)
    except ConfigError as error:
        yield Problem(("state", "url_env"), str(error))
