"""The command `gateway`.

Every option has an environment variable: INTERLINGUA_SERVE_PORT for `serve --port`, and so on.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import msgspec

import gateway
from backends.base import Health
from gateway.auth import keys_from
from gateway.config import Config, ConfigError, default, load, remote
from gateway.deployment.state_file import Live
from gateway.observability import logging
from schemas.errors import GatewayError


@click.group()
@click.version_option(gateway.__version__, prog_name="gateway")
def main() -> None:
    """One gateway for TGI, OpenAI, Databricks, Triton and Anthropic clients."""
    _check_siblings()


main.context_settings["auto_envvar_prefix"] = "INTERLINGUA"


@main.command()
@click.option("--model", type=click.Path(exists=True, file_okay=False), help="Serve this checkpoint folder.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="Serve what this TOML file describes.")
@click.option("--backend", help="Serve the remote server at this URL, whatever its kind.")
@click.option("--backend-key-env", help="Name of the environment variable that holds that server's key.")
@click.option("--host", help="Listen on this address.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen on this port; 0: any free one.  [default: 8000]")
@click.option("--workers", type=click.IntRange(1, 64), help="Run so many worker processes.  [default: 1]")
@click.option("--keys-env", help="Name of the environment variable that holds the API keys, comma-separated.")
@click.option("--insecure", is_flag=True, help="Listen on a public address without keys.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def serve(
    model: str | None,
    file: Path | None,
    backend: str | None,
    backend_key_env: str | None,
    insecure: bool,
    log_level: str,
    **server: Any,
) -> None:
    """Serve a model: the bundled one, unless told otherwise."""
    if sum(given is not None for given in (model, file, backend)) > 1:
        raise click.UsageError("--model, --config and --backend exclude each other")
    if backend_key_env is not None and backend is None:
        raise click.UsageError("--backend-key-env goes with --backend")
    from gateway.app import validate

    logging.configure(log_level)
    given = {name: value for name, value in server.items() if value is not None}

    def read() -> Config:
        config = load(file) if file is not None else _remote(backend, backend_key_env) if backend else default(model)
        config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, **given))
        _check_address(config, insecure)
        keys_from(config.server.keys_env)
        keys_from(config.server.admin_keys_env)
        validate(config)
        return config

    try:
        sys.exit(_serve(read, log_level))
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Say what is wrong with a configuration FILE, or what it would serve."""
    from gateway.app import validate

    try:
        config = load(file)
        validate(config)
        deployments = Live(config).deployments
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    for name, deployed in deployments.items():
        endpoint = deployed.serving
        click.echo(f"{name}  ({endpoint.task})")
        for entity in endpoint.served_entities:
            kind = config.backends[entity.backend]["kind"]
            shadow = ", a shadow" if entity.shadow is not None else ""
            paired = f", {entity.paired.share:.0%} paired" if entity.paired is not None else ""
            share, model = entity.traffic_percentage, entity.model or name
            click.echo(f"  {share:3d} %  {entity.name}: {model} on {entity.backend} ({kind}){shadow}{paired}")


@main.command()
@click.option("--config", "file", type=click.Path(path_type=Path), required=True, help="The TOML file.")
@click.option("--endpoint", required=True, help="The endpoint's name.")
@click.option("--unit", required=True, help="What a request's unit says, a user's name for instance.")
def explain(file: Path, endpoint: str, unit: str) -> None:
    """Say which served entity answers a unit, and why."""
    from gateway.routing.policy import policy_for

    try:
        deployed = Live(load(file)).deployments.get(endpoint)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    if deployed is None:
        raise click.ClickException(f"there is no endpoint '{endpoint}'")
    found = deployed.serving
    weights = {entity.name: float(entity.traffic_percentage) for entity in found.served_entities}
    for line in policy_for(endpoint, found).explain(unit, weights):
        click.echo(line)


@main.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    from gateway.app import adapters
    from gateway.http.openapi import document

    click.echo(document(adapters()).decode())


@main.command("build-kernels")
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), help="Keep them here.  [default: user's cache]"
)
def build_kernels(into: Path | None) -> None:
    """Compile the native engine's CPU kernels ahead of its first start, for container images."""
    from backends.native.engine.kernels import jit

    click.echo(f"Kernels for {jit.target()}:")
    failed = False
    try:
        for result in jit.build_all(into):
            click.echo(f"  {result.name}: {result.path or f'not built: {result.why}'}")
            failed |= result.path is None
    except (OSError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(failed)


def _remote(url: str, key_env: str | None) -> Config:
    """What serves the models of the server at `url`.

    Raises:
        ConfigError: there is none that could be served.
    """
    from backends.remote.probe import probe

    try:
        found = asyncio.run(probe(url, os.environ.get(key_env, "") if key_env else ""))
    except GatewayError as error:
        raise ConfigError(f"--backend {url}: {error.message}") from None
    except ValueError as error:
        raise ConfigError(f"--backend {url}: {error}") from None
    return remote(found.kind, found.url, found.models, key_env)


def _serve(read: Callable[[], Config], log_level: str) -> int:
    from gateway.process.supervisor import Supervisor

    supervisor = Supervisor(read, log_level)
    return supervisor.run(_Greeting(supervisor.config, supervisor.port).tend)


class _Greeting:
    """Watches the server come up, and says so: progress while a model loads, then where and how to ask.

    A server with one backend ends if that one cannot start; among several, the others answer.
    """

    def __init__(self, config: Config, port: int) -> None:
        self._config = config
        self._port = port
        self._done = False
        self._next = 0.0
        self._began = time.monotonic()
        self._status: Any = None

    def tend(self) -> bool:
        """Look once more; False if a backend failed before it was ever ready."""
        if self._done or time.monotonic() < self._next:
            return True
        self._next = time.monotonic() + 0.1
        health = self._look()
        if health is None:
            return True
        if health.status != "ready":
            return self._wait(health)
        self._greet()
        return True

    def _look(self) -> Health | None:
        """What a worker says of its health; None if none listens yet, or one has gone in the middle of its answer."""
        try:
            try:
                answer = urllib.request.urlopen(f"{self._url}/health/ready", timeout=1)  # noqa: S310 - http, our own
            except urllib.error.HTTPError as not_ready:
                answer = not_ready
            with answer:
                return msgspec.json.decode(answer.read(), type=Health)
        except (OSError, HTTPException, msgspec.DecodeError):
            return None

    @property
    def _url(self) -> str:
        host = self._config.server.host
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    def _wait(self, health: Health) -> bool:
        if health.status == "failed" and len(self._config.backends) == 1:
            self._close()
            click.echo(f"Error: {health.detail}", err=True)
            return False
        if sys.stderr.isatty():
            if self._status is None:
                from rich.console import Console

                self._status = Console(stderr=True).status("")
                self._status.start()
            self._status.update(health.detail)
        return True

    def _close(self) -> None:
        self._done = True
        if self._status is not None:
            self._status.stop()

    def _greet(self) -> None:
        from gateway.app import adapters
        from gateway.http.routes import routes

        self._close()
        model = next(iter(self._config.endpoints), "")
        keys = "a key is needed" if self._config.server.keys_env else "no key needed"
        click.echo(
            f"\nInterlingua {gateway.__version__} on {self._url}  ({keys}; {time.monotonic() - self._began:.1f} s)"
        )
        click.echo(f"Models: {', '.join(self._config.endpoints)}")
        click.echo(f"In a browser: {self._url}/ui\n")
        shown: set[str] = set()
        for protocol, route in routes(adapters()):
            if route.example is None or protocol in shown:
                continue
            shown.add(protocol)
            path = route.path.replace("{model}", model).replace("{name}", model)
            body = json.dumps(route.example).replace("{model}", model).replace("'", "'\\''")
            click.echo(f"# {protocol}\ncurl {self._url}{path} -H 'content-type: application/json' -d '{body}'\n")
        sys.stdout.flush()


def _check_address(config: Config, insecure: bool) -> None:
    host = config.server.host
    try:
        private = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        private = False
    if not private and config.server.keys_env is None and not insecure:
        raise ConfigError(f"{host} can be reached by others: set keys_env, or say --insecure")


def _check_siblings() -> None:
    """A distribution called `adapters`, say, would shadow ours and fail in strange ways."""
    home = Path(__file__).parent.parent
    for name in ("adapters", "backends", "schemas"):
        spec = find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).parent.parent != home:
            raise click.ClickException(
                f"The package '{name}' that Python finds is not Interlingua's own: another distribution shadows it."
            )


if __name__ == "__main__":
    main()
