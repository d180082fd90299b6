"""The commands `gateway openapi` and `gateway build-kernels`: what is made ahead of a server."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gateway.config import Config


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
