"""The commands `gateway models`: fetch models before a server needs them."""

from __future__ import annotations

import click

from backends.base import NotPrepared


@click.group()
def models() -> None:
    """Fetch models ahead of serving them, for machines and images that will be offline."""


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
