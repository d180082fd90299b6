"""The flags of `vllm serve` as options of `gateway serve`, by the table of `gateway.importers.vllm_flags`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from gateway.importers.vllm_flags import FLAGS, SHORT, answer

_F = TypeVar("_F", bound=Callable[..., Any])


class ServeCommand(click.Command):
    """Takes a command line as vLLM does: underscores for dashes, and several values after one flag."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words of the command line, as click does."""
        return super().parse_args(ctx, _as_options(args))


def vllm_options(command: _F) -> _F:
    """Add an option for each flag that `gateway serve` does not have by itself; most are hidden in its help."""
    for name, flag in reversed(list(FLAGS.items())):
        if not flag.own:
            declared = [f"--{name}", *([flag.short] if flag.short else [])]
            option = click.option(
                *declared,
                name.replace("-", "_"),
                help=flag.help or None,
                hidden=not flag.help,
                is_flag=flag.takes == "nothing",
                default=False if flag.takes == "nothing" else None,
                multiple=flag.takes == "values",
            )
            command = option(command)
    return command


def native_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a native backend by the flags that were given; what has no effect is said on standard error.

    Args:
        given: the values of all options that `vllm_options` added, by their names.

    Raises:
        click.UsageError: a flag asks for what would not be done, or its value is wrong.
    """
    options: dict[str, Any] = {}
    for name, value in given.items():
        if value in (None, False, ()):
            continue
        flag = name.replace("_", "-")
        try:
            found = answer(flag, value)
        except ValueError as error:
            raise click.UsageError(f"--{flag}: {error}") from None
        # Without the value, which may be a secret.
        if found.refused:
            raise click.UsageError(f"--{flag}: {found.note}")
        if found.note:
            click.echo(f"--{flag} has no effect: {found.note}", err=True)
        options |= found.options
    return options


def is_vllm_option(name: str) -> bool:
    """Whether `vllm_options` added the option whose value has this name."""
    flag = FLAGS.get(name.replace("_", "-"))
    return flag is not None and not flag.own


def _as_options(args: Sequence[str]) -> list[str]:
    """The words as click reads them: `--lora-modules a=x b=y` is that flag twice."""
    words: list[str] = []
    repeated = ""  # a flag that took a value and may take another
    has_model = False
    for place, word in enumerate(args):
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            dashed = flag.replace("_", "-")
            flag = dashed if dashed.removeprefix("--") in FLAGS else flag
            words.append(f"{flag}{equals}{value}")
        elif repeated and not word.startswith("-") and (has_model or equals):
            words += [repeated, word]
            continue
        else:
            words.append(word)
        previous = words[-2] if len(words) > 1 else ""
        takes = FLAGS.get(SHORT.get(previous, previous.removeprefix("--")))
        is_value = previous.startswith("-") and place > 0 and (takes is None or takes.takes != "nothing")
        repeated = previous if is_value and takes is not None and takes.takes == "values" else ""
        has_model = has_model or flag == "--model" or not (word.startswith("-") or is_value)
    return words
