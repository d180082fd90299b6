"""The command `gateway`. Each of its commands is a module of this package, imported when the command is called."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click

import gateway
from gateway.process.imports import quick_imports

_COMMANDS = {
    "serve": "serve:serve",
    "engine": "serve:engine",
    "cluster": "cluster.status:cluster",
    "reload": "control:reload",
    "restart": "control:restart",
    "check": "check:check",
    "explain": "check:explain",
    "init": "init:init",
    "import": "importing:importing",
    "ask": "ask:ask",
    "chat": "ask:chat",
    "bench": "bench:bench",
    "models": "artifacts:models",
    "keys": "keys:keys",
    "usage": "usage:usage",
    "experiment": "experiment:experiment",
    "openapi": "artifacts:openapi",
    "build-kernels": "artifacts:build_kernels",
    "doctor": "doctor:doctor",
    "completion": "artifacts:completion",
}
"""Command: its module in this package, and its name there. Help lists them in this order."""


_EPILOG = """
\b
Examples:
  gateway serve                                  the bundled model, at http://127.0.0.1:8000
  gateway serve ./Qwen3-0.6B --port 9000         a folder, a GGUF file, or a model of the hub
  gateway serve --backend http://10.0.0.5:8000   a server of any protocol: its kind is probed
  gateway check gateway.toml && gateway serve --config gateway.toml

Each option has an environment variable, as `gateway COMMAND --help` shows: INTERLINGUA_SERVE_PORT for `serve --port`.
"""


class _Commands(click.Group):
    """The table above as a group: `gateway --version` and a completion should not wait for a server's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the words begin with; of a wrong one, the nearest is named."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from gateway.config import nearest

            hint = "" if args[0].startswith("-") else nearest(args[0], _COMMANDS)
            raise click.UsageError(f"{error.format_message().rstrip('.')}{hint}", ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in _COMMANDS:
            return None
        # Before a command imports more of them: a foreign package would fail there with an error that does not say why.
        _check_siblings()
        module, _, name = _COMMANDS[cmd_name].partition(":")
        with quick_imports():
            command: click.Command = getattr(import_module(f"gateway.cli.{module}"), name)
        _name_variables(command, f"INTERLINGUA_{cmd_name}")
        return command


@click.group(cls=_Commands, context_settings={"max_content_width": 100}, epilog=_EPILOG)
@click.version_option(gateway.__version__, prog_name="gateway")
def main() -> None:
    """One gateway for TGI, OpenAI, Databricks, Triton and Anthropic clients."""


def _name_variables(command: click.Command, prefix: str) -> None:
    """Give each option of a command, and of those below it, an environment variable, and have help name it."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            # After the option itself: click's own rule takes the name of the parameter in Python.
            name = next(name for name in parameter.opts if name.startswith("--"))
            parameter.envvar = f"{prefix}_{name.removeprefix('--')}".replace("-", "_").upper()
            parameter.show_envvar = True
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            _name_variables(inner, f"{prefix}_{name}")


def _check_siblings() -> None:
    """Refuse to run where another distribution's package, `adapters` for instance, shadows ours.

    Raises:
        click.ClickException: one does.
    """
    # `adapters`, `backends` and `schemas` are common names for top-level packages.
    home = Path(gateway.__file__).parent.parent
    for name in ("adapters", "backends", "schemas"):
        spec = find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).parent.parent != home:
            raise click.ClickException(
                f"Python finds a package '{name}' that is not Interlingua's: uninstall the distribution that it is of, "
                "or install Interlingua into an environment of its own."
            )
