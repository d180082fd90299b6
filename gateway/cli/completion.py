"""The command `gateway completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_GATEWAY_COMPLETE"  # click's name for it: the program's, in capitals


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
