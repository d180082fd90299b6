"""The command `gateway`: serve, check, explain, experiment, models, usage, openapi.

Each option has an environment variable: INTERLINGUA_SERVE_PORT for `serve --port`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import msgspec

import gateway
from backends.base import NotPrepared
from gateway.config import Config, ConfigError, default, load, nearest
from gateway.deployment.state_file import LiveDeployments
from gateway.experiment_cli import experiment
from gateway.keys_cli import keys
from gateway.models_cli import models
from gateway.observability import logging
from gateway.usage_cli import usage


@click.group()
@click.version_option(gateway.__version__, prog_name="gateway")
def main() -> None:
    """One gateway for TGI, OpenAI, Databricks, Triton and Anthropic clients."""
    # Before a command imports more of them: a foreign package would fail there with an error that does not say why.
    _check_siblings()


main.context_settings["auto_envvar_prefix"] = "INTERLINGUA"


@main.command()
@click.argument("path", required=False)
@click.option(
    "--model", help="Serve this model: a folder, a GGUF file, smollm2 or minilm, or owner/name[@revision] of the hub."
)
@click.option("--config", "file", type=click.Path(path_type=Path), help="Serve what this TOML file describes.")
@click.option("--backend", help="Serve the models of the remote server at this URL; its kind is probed.")
@click.option(
    "--served-model-name",
    "--name",
    "names",
    multiple=True,
    help="Call the model this; given again: further names for it.  [default: the folder's name]",
)
@click.option("--speculation", is_flag=True, help="Verify draft tokens where that is faster; texts stay the same.")
@click.option("--backend-key-env", help="Name of the environment variable that holds that server's key.")
@click.option("--host", help="Listen on this address.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen on this port; 0 picks a free one.  [default: 8000]")
@click.option("--workers", type=click.IntRange(1, 64), help="Number of worker processes.  [default: 1]")
@click.option("--keys-env", help="Name of the environment variable that holds the API keys, comma-separated.")
@click.option("--insecure", is_flag=True, help="Listen on a public address without keys.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def serve(
    path: str | None,
    model: str | None,
    file: Path | None,
    backend: str | None,
    names: tuple[str, ...],
    speculation: bool,
    backend_key_env: str | None,
    insecure: bool,
    log_level: str,
    **server: Any,
) -> None:
    """Serve models: PATH or --model, those of --config or --backend; the bundled model by default."""
    model = _model_of(path, model)
    _check_options(model, file, backend, names, backend_key_env, speculation=speculation)
    # Imported here: `gateway --version` and completion should not wait for Litestar.
    from gateway.app import prepare
    from gateway.check import read_file, validate
    from gateway.listed_models import probed, with_listed

    logging.configure(log_level)
    # Options that were given override the file; None was not.
    given = {name: value for name, value in server.items() if value is not None}

    def change(config: Config) -> Config:
        return msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, **given))

    # At a reload nothing is fetched: that may take minutes, in which no process would be restarted.
    fetches = iter((True,))

    # Called again for each SIGHUP, with the same options.
    def read() -> Config:
        if file is not None:
            config = with_listed(read_file(file, change, insecure=insecure))
        else:
            config = change(
                probed(backend, backend_key_env, names) if backend else _local(model, names, speculation=speculation)
            )
            validate(config, insecure=insecure)
        return prepare(config, lambda said: click.echo(said, err=True), fetch=next(fetches, False))

    try:
        sys.exit(_serve(read, log_level))
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--offline", is_flag=True, help="Leave out variables, files and addresses: this is not where it will run."
)
@click.option("--insecure", is_flag=True, help="Allow a public address without keys.")
def check(file: Path, offline: bool, insecure: bool) -> None:
    """Check a configuration FILE: print all for which `serve` would refuse it, or what it would serve."""
    from gateway.check import read_file

    try:
        config = read_file(file, offline=offline, insecure=insecure)
        # With the changes in the state file, as a server would start with them.
        deployments = LiveDeployments(config).deployments
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    if not deployments:
        for name, section in config.backends.items():
            click.echo(f"every model that {name} ({section['kind']}) lists")
    for name, deployed in deployments.items():
        endpoint = deployed.serving
        also = f", also {', '.join(endpoint.aliases)}" if endpoint.aliases else ""
        changed = "" if endpoint == config.endpoints.get(name) else f"  (from {config.server.state_file})"
        click.echo(f"{name}  ({endpoint.task or 'chat'}){also}{changed}")
        for entity in endpoint.served_entities:
            kind = config.backends[entity.backend]["kind"]
            shadow = ", a shadow" if entity.shadow is not None else ""
            paired = f", {entity.paired.share:.0%} paired" if entity.paired is not None else ""
            share, model = entity.traffic_percentage, entity.model or name
            click.echo(f"  {share:3d} %  {entity.name}: {model} on {entity.backend} ({kind}){shadow}{paired}")


@main.command()
@click.option("--config", "file", type=click.Path(path_type=Path), required=True, help="The TOML file.")
@click.option("--endpoint", required=True, help="The endpoint's name.")
@click.option("--unit", required=True, help="The value of a unit, for instance a user's name.")
def explain(file: Path, endpoint: str, unit: str) -> None:
    """Explain which served entity answers a unit."""
    from gateway.routing.policy import policy_for

    try:
        deployments = LiveDeployments(load(file)).deployments
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    if (deployed := deployments.get(endpoint)) is None:
        raise click.ClickException(f"{file}: there is no endpoint '{endpoint}'{nearest(endpoint, deployments)}")
    weights = {entity.name: float(entity.traffic_percentage) for entity in deployed.serving.served_entities}
    for line in policy_for(endpoint, deployed.serving).explain(unit, weights):
        click.echo(line)


@main.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    from gateway.app import create_app

    # That of a server without endpoints: the document does not depend on the configuration.
    click.echo(create_app(Config()).state.openapi().decode())


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
    sys.exit(failed)  # 1 if a kernel was not built


main.add_command(experiment)
main.add_command(keys)
main.add_command(models)
main.add_command(usage)


def _model_of(path: str | None, model: str | None) -> str | None:
    """The model that is given as an argument or as an option.

    Raises:
        click.UsageError: it is given twice, or is a configuration.
    """
    if path is not None and model is not None:
        raise click.UsageError("give the model once: as PATH or by --model")
    model = model if path is None else path
    if model is not None and model.endswith(".toml"):
        raise click.UsageError(f"{model} is no model: give a configuration by --config")
    return model


def _check_options(
    model: str | None,
    file: Path | None,
    backend: str | None,
    names: Sequence[str],
    key_env: str | None,
    *,
    speculation: bool,
) -> None:
    """Refuse options of `serve` that contradict each other.

    Raises:
        click.UsageError: two of them do.
    """
    if sum(given is not None for given in (model, file, backend)) > 1:
        raise click.UsageError("--model, --config and --backend exclude each other: give one of them")
    if names and file is not None:
        raise click.UsageError("--served-model-name names a model that has no --config: there, endpoints have names")
    if speculation and (file is not None or backend is not None):
        raise click.UsageError(
            "--speculation is for a native model without --config: there, backends have `speculation`"
        )
    if key_env is not None and backend is None:
        raise click.UsageError("--backend-key-env needs --backend")


def _local(model: str | None, names: Sequence[str], *, speculation: bool) -> Config:
    """A configuration that serves a native model, called `names`, or like its folder, file or model of the hub.

    Raises:
        ConfigError: there is no such model, or it cannot be read.
    """
    if model is None:
        return default(None, names, speculation=speculation)
    from backends.native.checkpoints.reference import check, names_of

    try:
        check(model)
    except NotPrepared as error:
        raise ConfigError(str(error)) from None
    return default(model, names or names_of(model), speculation=speculation)


def _serve(read: Callable[[], Config], log_level: str) -> int:
    from gateway.process.startup import StartupMonitor
    from gateway.process.supervisor import Supervisor

    supervisor = Supervisor(read, log_level)
    return supervisor.run(StartupMonitor(supervisor.config, supervisor.port).poll)


def _check_siblings() -> None:
    """Refuse to run where another distribution's package, `adapters` for instance, shadows ours.

    Raises:
        click.ClickException: one does.
    """
    # `adapters`, `backends` and `schemas` are common names for top-level packages.
    home = Path(__file__).parent.parent
    for name in ("adapters", "backends", "schemas"):
        spec = find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).parent.parent != home:
            raise click.ClickException(
                f"Python finds a package '{name}' that is not Interlingua's: uninstall the distribution that it is of, "
                "or install Interlingua into an environment of its own."
            )


if __name__ == "__main__":
    main()
