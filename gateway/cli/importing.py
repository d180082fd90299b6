"""The commands `gateway import`: other servers' configurations as ours."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import click

from gateway.cli.init import write_new
from gateway.importers.draft import Draft
from gateway.importers.fields import UnreadableError
from gateway.importers.litellm import read_litellm
from gateway.importers.mindie import read_mindie
from gateway.importers.triton import DEFAULT_URL, read_triton
from gateway.importers.vllm import read_vllm

_output = click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the configuration here instead of to standard output. A file is never replaced.",
)
_File = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("import")
def importing() -> None:
    """Write a configuration that serves what another server's does.

    The configuration goes to standard output, each field that could not be carried over to standard error.
    """


@importing.command()
@click.argument("file", type=_File)
@_output
def litellm(file: Path, output: Path | None) -> None:
    """Import the config.yaml of LiteLLM's proxy."""
    _write(lambda: read_litellm(_text(file), os.environ), str(file), output)


# vLLM's flags are part of the line.
@importing.command(context_settings={"ignore_unknown_options": True})
@click.argument("source", metavar="FILE_OR_LINE", nargs=-1, required=True, type=click.UNPROCESSED)
@_output
def vllm(source: tuple[str, ...], output: Path | None) -> None:
    """Import a `vllm serve` or `docker run` command, a script with one, a compose file, or vLLM's YAML file.

    gateway import vllm vllm serve Qwen/Qwen3-8B --max-model-len 32k
    """
    line = source[0] if len(source) == 1 else shlex.join(source)
    file = Path(line)
    if len(line) < 256 and file.is_file():
        _write(lambda: read_vllm(_text(file)), line, output)
    else:
        _write(lambda: read_vllm(line), "the command", output)


@importing.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--url", default=DEFAULT_URL, show_default=True, help="The Triton that goes on serving other models.")
@_output
def triton(folder: Path, url: str, output: Path | None) -> None:
    """Import a model repository of Triton's, a FOLDER of models.

    Models of its vLLM backend are served natively; others stay with their Triton, if texts go in and come out.
    """
    _write(lambda: read_triton(folder, url), str(folder), output)


@importing.command()
@click.argument("file", type=_File)
@_output
def mindie(file: Path, output: Path | None) -> None:
    """Import the config.json of MindIE's server."""
    _write(lambda: read_mindie(_text(file)), str(file), output)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: cannot be read: {error}") from None


def _write(read: Callable[[], Draft], source: str, output: Path | None) -> None:
    """Write what an importer makes, and report what it left.

    Raises:
        click.ClickException: nothing came that could be served, or the file is there already.
    """
    try:
        draft = read()
    except UnreadableError as error:
        raise click.ClickException(f"{source}: {error}") from None
    for left in sorted(draft.left):
        click.echo(f"not carried over: {left}", err=True)
    if not draft.endpoints:
        raise click.ClickException(f"{source}: nothing of it can be served")
    if output is None:
        click.echo(draft.toml(), nl=False)
    else:
        write_new(output, draft.toml())
        click.echo(f"{output} is written: check it with `gateway check {output}`", err=True)
