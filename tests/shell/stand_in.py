"""A stand-in for a program that is not on every machine: it reads its words as the program's recorded `--help` says.

    python stand_in.py PROGRAM WORDS...

Each call is appended to the file `$CALLS` as a line of JSON. Words that the program would refuse end with status 2. The
files of `help/` are what `docker run --help` and its like print: Docker 28.2, kubectl 1.32, Ray 2.60.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HELP = Path(__file__).with_name("help")
_OPTION = re.compile(
    r"^ +(?:-(?P<short>\w), )?--(?P<name>[a-z0-9-]+)(?: (?P<type>[^\s/]+)|=(?P<default>[^:]*):)?(?: {2,}|$)",
    re.MULTILINE,
)
_STOPS = {"docker run"}
"""Commands whose options end with their first argument: the rest belongs to the command in the container."""


class UsageError(Exception):
    """The program would refuse these words."""


class Option(NamedTuple):
    """An option of a command."""

    name: str
    has_value: bool


def options(command: str) -> dict[str, Option]:
    """The options of a command by their long and short names."""
    found: dict[str, Option] = {}
    for each in _OPTION.finditer((HELP / f"{command.replace(' ', '-')}.txt").read_text()):
        has_value = each["type"] is not None or each["default"] not in (None, "true", "false")
        found[each["name"]] = Option(each["name"], has_value)
        if each["short"]:
            found[each["short"]] = found[each["name"]]
    return found


def split(words: list[str]) -> tuple[str, list[str]]:
    """A command whose help is recorded, and the words after it."""
    for count in range(len(words), 0, -1):
        if (HELP / f"{'-'.join(words[:count])}.txt").exists():
            return " ".join(words[:count]), words[count:]
    raise UsageError(f"no such command: {' '.join(words)}")


def parse(command: str, words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The values of the options that were given, and the arguments.

    Raises:
        UsageError: there is no such option, or it has no value.
    """
    known = options(command)
    given: dict[str, list[str]] = {}
    arguments: list[str] = []
    rest: Iterator[str] = iter(words)
    for word in rest:
        if (arguments and command in _STOPS) or not word.startswith("-") or word == "-":
            arguments.append(word)
            continue
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            name, equals, value = name[:2], word[2:], word[2:]
        if (option := known.get(name.lstrip("-"))) is None:
            raise UsageError(f"unknown option: {word}")
        if option.has_value and not equals and (value := next(rest, "")) == "":
            raise UsageError(f"option needs a value: {word}")
        given.setdefault(option.name, []).append(value)
    return given, arguments


def main() -> None:
    try:
        command, words = split(sys.argv[1:])
        given, arguments = parse(command, words)
    except UsageError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
    call = {"command": command, "options": given, "arguments": arguments, "environment": dict(os.environ)}
    with Path(os.environ["CALLS"]).open("a") as file:
        file.write(json.dumps(call) + "\n")


if __name__ == "__main__":
    main()
