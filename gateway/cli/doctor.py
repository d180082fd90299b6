"""The command `gateway doctor`: what the native engine finds on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from backends.native.engine.doctor.report import Report


@click.command()
@click.argument("model", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--device", default="auto", show_default=True, help="cpu, or an accelerator as torch names it.")
@click.option("--dtype", default="auto", show_default=True, help="Of the weights.")
@click.option("--steps", default=64, show_default=True, type=click.IntRange(1, 4096), help="Decode steps to measure.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON, to send it on.")
def doctor(model: Path | None, device: str, dtype: str, steps: int, *, as_json: bool) -> None:
    """Examine the native engine on this machine; exit with 1 if something is wrong.

    MODEL is the folder of a generating model; without it, the bundled one, whose speed says little.
    """
    from backends.native.demo import WEIGHTS

    try:
        from backends.native.engine.doctor.report import examine
        from backends.native.engine.errors import LoadError
    except ImportError as error:
        raise click.ClickException(
            f"the engine is not installed ({error}): pip install 'interlingua[engine]'"
        ) from None
    try:
        report = examine(str(model or WEIGHTS), device, dtype, steps=steps)
    except LoadError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        _print(report)
    sys.exit(bool(report.faults))


def _print(report: Report) -> None:
    machine = report.machine
    versions = ", ".join(f"{name} {found or 'not installed'}" for name, found in machine.packages.items())
    click.echo(f"Device     {machine.device}: {machine.device_name}")
    if machine.driver:
        click.echo(f"Driver     {machine.driver}")
    click.echo(f"Software   Python {machine.python}, {versions}")
    click.echo(
        f"Memory     {machine.free_bytes / 2**30:.1f} GiB free, copied at {_rate(machine.copy_bytes_per_second)}"
    )
    if machine.send_bytes_per_second:
        click.echo(f"           copied from the host at {_rate(machine.send_bytes_per_second)}")
    click.echo("\nRoutines, and how far they are from torch's:")
    for each in report.routines:
        error = "not used: " + each.why if not each.used else f"{each.error:.1e}{'  WRONG' if each.is_wrong else ''}"
        click.echo(f"  {each.name:24} {each.dtype:9} {error}")
    click.echo(f"\nDecode of {report.model} in {report.dtype}, {report.execution_path}:")
    for found in report.decoding:
        share = "" if found.share_of_floor is None else f", {found.share_of_floor:.0%} of what memory allows"
        waits = "" if found.waits is None else f", {found.waits} waits a step"
        speed = f"{found.tokens_per_second:9.1f} tokens/s, {found.step_seconds * 1e3:7.2f} ms a step"
        click.echo(f"  {found.sequences:3} sequences {speed}{share}{waits}")
    for fallback in report.fallbacks:
        click.echo(f"\nNot used   {fallback.what or fallback.event}: {fallback.why}")
    for fault in report.faults:
        click.echo(f"\nWRONG      {fault}")


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.1f} GB/s"
