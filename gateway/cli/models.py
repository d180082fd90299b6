"""The commands `gateway models`: list packaged models, and fetch models before a server needs them."""

from __future__ import annotations

import click

from backends.base import NotPrepared


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
