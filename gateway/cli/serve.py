"""The commands `gateway serve`, and `gateway engine`: an engine by itself, for gateways on other machines."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import msgspec

from backends.base import NotPrepared
from gateway.cli.vllm_options import ServeCommand, is_vllm_option, native_options, vllm_options
from gateway.config import Config, ConfigError, default
from gateway.observability import logging
from gateway.process.imports import quick_imports

_EXAMPLES = """
\b
Examples:
  gateway serve ./Qwen3-0.6B --port 9000
  gateway serve Qwen/Qwen3-0.6B --max-model-len 8k --served-model-name qwen
  gateway serve --backend http://10.0.0.5:8000 --backend-key-env THEIR_KEY
  KEYS=one,another gateway serve --config gateway.toml --host 0.0.0.0 --keys-env KEYS

The flags of `vllm serve` are known: they have their effect, or are answered with what to do instead.
"""

_ENGINE_EXAMPLES = """
\b
Examples:
  ENGINE_SECRET=... gateway engine ./Qwen3-0.6B --listen tcp://10.0.0.7:7000
  ENGINE_SECRET=... gateway engine ./Qwen3-0.6B --listen tcp://10.0.0.7:7001 --device=cuda:1 --max-sequences=128

A gateway uses it with `engines = ["tcp://10.0.0.7:7000"]` and `secret_env = "ENGINE_SECRET"` under the backend of
the same model. It ends if it fails: have systemd or Kubernetes start it again.
"""


@click.command(cls=ServeCommand, epilog=_EXAMPLES)
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
@click.option(
    "--ray",
    is_flag=False,
    flag_value="auto",
    metavar="[ADDRESS]",
    help="Run the engines on the nodes of a Ray cluster: this machine's, or that whose head is at HOST:PORT.",
)
@click.option("--backend-key-env", help="Name of the environment variable that holds that server's key.")
@click.option("--host", help="Listen on this address.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen on this port; 0 picks a free one.  [default: 8000]")
@click.option("--workers", type=click.IntRange(1, 64), help="Number of worker processes.  [default: 1]")
@click.option("--keys-env", help="Name of the environment variable that holds the API keys, comma-separated.")
@click.option("--ssl-certfile", help="Speak HTTPS with this certificate and its chain (PEM).")
@click.option("--ssl-keyfile", help="The certificate's private key, if it is in another file.")
@click.option("--ssl-ca-certs", help="Have clients show a certificate of these authorities (PEM).")
@click.option("--insecure", is_flag=True, help="Listen on a public address without keys.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Log this and what is worse.",
)
@vllm_options
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
    **others: Any,
) -> None:
    """Serve models: PATH or --model, those of --config or --backend; the bundled model by default."""
    model = _model_of(path, model)
    options = native_options({name: value for name, value in others.items() if is_vllm_option(name)})
    options |= {"speculation": True} if speculation else {}
    _check_options(model, file, backend, names, backend_key_env, options)
    ray: str | None = others.pop("ray")
    _check_ray(ray, backend)
    # Imported here: `gateway --version` and completion should not wait for Litestar.
    with quick_imports():
        from gateway.check import read_file, validate
        from gateway.listed_models import probed, with_listed
        from gateway.process.startup import StartupMonitor  # noqa: F401 - here, where the collector is off
        from gateway.process.supervisor import Supervisor  # noqa: F401
        from gateway.registry import on_ray, prepare

    logging.configure(log_level)
    # Options that were given override the file; None was not.
    given = {name: value for name, value in others.items() if value is not None and not is_vllm_option(name)}

    def change(config: Config) -> Config:
        config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, **given))
        return config if ray is None else on_ray(config, ray)

    # At a reload nothing is fetched: that may take minutes, in which no process would be restarted.
    fetches = iter((True,))

    # Called again for each SIGHUP, with the same options.
    def read() -> Config:
        if file is not None:
            config = with_listed(read_file(file, change, insecure=insecure))
        else:
            config = change(probed(backend, backend_key_env, names) if backend else _local(model, names, options))
            validate(config, insecure=insecure)
        return prepare(config, lambda said: click.echo(said, err=True), fetch=next(fetches, False))

    sys.exit(_serve(read, log_level))


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
    if model is not None and model.endswith((".yaml", ".yml", ".json")):
        raise click.UsageError(f"{model} is no model: `gateway import` makes a configuration of another server's file")
    return model


def _check_options(
    model: str | None,
    file: Path | None,
    backend: str | None,
    names: Sequence[str],
    key_env: str | None,
    options: Mapping[str, Any],
) -> None:
    """Refuse options of `serve` that contradict each other.

    Raises:
        click.UsageError: two of them do.
    """
    if sum(given is not None for given in (model, file, backend)) > 1:
        raise click.UsageError("--model, --config and --backend exclude each other: give one of them")
    if names and file is not None:
        raise click.UsageError("--served-model-name names a model that has no --config: there, endpoints have names")
    if options and (file is not None or backend is not None):
        keys = ", ".join(f"`{name}`" for name in options)
        raise click.UsageError(f"{keys}: for a native model; with --config, set it in the file, under the backend")
    if "revision" in options and model is None:
        raise click.UsageError("--revision is of a model of the hub: name it")
    if key_env is not None and backend is None:
        raise click.UsageError("--backend-key-env needs --backend")


def _check_ray(address: str | None, backend: str | None) -> None:
    """Refuse an address of a Ray cluster that is none, or that nothing here can use.

    Raises:
        click.ClickException: it is.
    """
    if address is None:
        return
    from backends.native.options import LACKS_RAY, RAY_ADDRESS

    if re.search(RAY_ADDRESS, address) is None:
        raise click.UsageError(f"--ray takes HOST:PORT or auto, not '{address}'; PATH goes before it")
    if backend is not None:
        raise click.UsageError("--ray places native models, and --backend is a remote server")
    if find_spec("ray") is None:
        raise click.ClickException(LACKS_RAY)


def _local(model: str | None, names: Sequence[str], options: Mapping[str, Any]) -> Config:
    """A configuration that serves a native model, called `names`, or like its folder, file or model of the hub.

    Raises:
        ConfigError: there is no such model, or it cannot be read.
    """
    if model is None:
        return default(None, names, options)
    from backends.native.checkpoints.reference import check, names_of

    options = dict(options)
    names = names or names_of(model)
    if revision := options.pop("revision", None):
        model = f"{model}@{revision}"
    try:
        check(model)
    except NotPrepared as error:
        raise ConfigError(str(error)) from None
    return default(model, names, options)


def _serve(read: Callable[[], Config], log_level: str) -> int:
    from gateway.process.startup import StartupMonitor
    from gateway.process.successor import Predecessor
    from gateway.process.supervisor import Supervisor

    predecessor = Predecessor()
    try:
        supervisor = Supervisor(read, log_level, predecessor)
    except ConfigError as error:
        predecessor.refuse(str(error))
        raise click.ClickException(str(error)) from None
    return supervisor.run(StartupMonitor(supervisor.config, supervisor.ports))


@click.command(epilog=_ENGINE_EXAMPLES, context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.option("--listen", required=True, help="Listen at this address: tcp://HOST:PORT, or unix:///PATH.")
@click.option(
    "--secret-env",
    default="ENGINE_SECRET",
    show_default=True,
    help="Name of the environment variable that holds the secret of connections over TCP.",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def engine(model: str, listen: str, secret_env: str, options: tuple[str, ...]) -> None:
    """Run an engine of MODEL by itself, which gateways on other machines can use.

    OPTIONS are the engine's options of a backend's section, as --max-sequences=128 for `max_sequences = 128`.
    """
    # Imported here: completion and help should not wait for them.
    from backends.native.checkpoints.reference import prepare
    from backends.native.engine.serving.__main__ import main

    try:
        folder = prepare(model, lambda said: click.echo(said, err=True))
    except NotPrepared as error:
        raise click.ClickException(str(error)) from None
    sys.exit(main([f"--model={folder}", f"--listen={listen}", f"--secret-env={secret_env}", *options]))
