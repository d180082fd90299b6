"""The commands `gateway reload` and `gateway restart`: they reach a server that runs on this machine."""

from __future__ import annotations

import tempfile
from contextlib import closing
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gateway.process.control import Action, RunningServer, RunningServers

_port = click.option(
    "--port", type=click.IntRange(1, 65535), help="The server that listens on this port, if several run."
)


@click.command()
@_port
def reload(port: int | None) -> None:
    """Have a running server read its configuration again, and wait until it serves that."""
    title, changed = _have(port, "reload")
    click.echo(f"Reloaded {title}: {changed}.")


@click.command()
@_port
def restart(port: int | None) -> None:
    """Have a running server start again, with the code that is installed by now, and wait until that serves.

    The listening sockets stay open, and streams finish.
    """
    title, successor = _have(port, "restart")
    click.echo(f"Restarted {title}: process {successor} serves now; the old one finishes its streams.")


def _have(port: int | None, action: Action) -> tuple[str, str]:
    """Have a server act. Return which one that was, and what it says of it.

    Raises:
        click.ClickException: it was not done.
    """
    from gateway.process.control import running_servers

    with closing(running_servers()) as servers:
        server = _chosen(servers, port)
        outcome = server.ask(action)
    title = _title(server)
    if outcome is None:
        raise click.ClickException(f"{title} ended before it could {action}")
    if not outcome.done:
        raise click.ClickException(f"the {action} failed, and {title} serves as before: {outcome.text}")
    return title, outcome.text


def _chosen(servers: RunningServers, port: int | None) -> RunningServer:
    """The server that runs, or of several the one that listens on `port`.

    Raises:
        click.ClickException: there is none, or it is not clear which one is meant.
    """
    found = [each for each in servers.found if port is None or port in _ports(each)]
    if not found:
        raise click.ClickException(_none_found(servers, port))
    if len(found) > 1:
        names = " and ".join(map(_title, found))
        raise click.ClickException(f"several servers run: {names}; choose one by --port")
    return found[0]


def _none_found(servers: RunningServers, port: int | None) -> str:
    if servers.silent:
        return f"the server of {servers.silent[0]} does not answer: it is stopped, or busy; try again"
    if servers.found:
        return f"no server listens on port {port}: {' and '.join(map(_title, servers.found))} run"
    where = f"no server of this user was found in {tempfile.gettempdir()}"
    if servers.of_others:
        return f"{where}, but of {', '.join(servers.of_others)}: only that user may do this"
    return f"{where}; one with another TMPDIR, or in a container, is reached there, or by `kill -HUP` or `kill -USR2`"


def _ports(server: RunningServer) -> list[int]:
    return [int(address.rpartition(":")[2]) for address in server.introduction.addresses]


def _title(server: RunningServer) -> str:
    return f"the server on {', '.join(server.introduction.addresses)} (process {server.introduction.pid})"
