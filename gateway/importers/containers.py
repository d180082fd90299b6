"""A server in a container: what a `docker run` line or a compose file gives its program, ports and folders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from gateway.importers.fields import Fields, UnreadableError, read_yaml

_LINE = r"(?:\\\r?\n|[^\n])*"  # a backslash continues it
_HERE = re.compile(r"^(?:\$\(pwd\)|\$\{?PWD\}?)")


class Container(NamedTuple):
    """How a container runs.

    Attributes:
        line: where that stands.
        command: what follows the image, or what a service has as its command.
        ports: the port of the machine by that of the container.
        folders: the folder of the machine by that of the container.
        others: further services of the same image.
    """

    line: int
    command: list[str]
    ports: dict[int, int]
    folders: dict[str, str]
    others: Sequence[str] = ()

    def path(self, inside: str) -> str:
        """A path of the container as one of the machine; as it is if no folder of the machine is there."""
        for folder, outside in self.folders.items():
            if PurePosixPath(inside).is_relative_to(folder):
                return str(PurePosixPath(outside, PurePosixPath(inside).relative_to(folder)))
        return inside


def find_container(text: str, image: str) -> Container | None:
    """The container of an image in a script or a compose file; None if there is none.

    Args:
        text: of the script or the file.
        image: what the image's name contains.

    Raises:
        UnreadableError: a line cannot be read.
    """
    found = re.search(rf"\b(?:docker|podman|nerdctl)\s+run\s({_LINE}?)\s(\S*{re.escape(image)}\S*)({_LINE})", text)
    if found is None:
        return _service(text, image)
    options = _words(found[1])
    line = text.count("\n", 0, found.start()) + 1
    ports = _ports(_values(options, "-p", "--publish"))
    return Container(line, _words(found[3]), ports, _folders(_values(options, "-v", "--volume")))


def _service(text: str, image: str) -> Container | None:
    try:
        fields = read_yaml(text)
    except UnreadableError:
        return None
    services = fields.below("services") if isinstance(fields.values.get("services"), dict) else Fields({})
    found = [
        (name, service)
        for name in services.values
        if image in str((service := services.below(name)).values.get("image", ""))
    ]
    if not found:
        return None
    (_, service), *others = found
    command = service.values.get("command") or []
    words = _words(command) if isinstance(command, str) else [str(each) for each in command]
    line = service.lines.get((*service.path, "command"), 0)
    ports, folders = (service.values.get(name) or [] for name in ("ports", "volumes"))
    return Container(line, words, _ports(ports), _folders(folders), [name for name, _ in others])


def _words(text: str) -> list[str]:
    try:
        return shlex.split(re.sub(r"\\\r?\n", " ", text), comments=True)
    except ValueError as error:
        raise UnreadableError(f"the command cannot be read: {error}") from None


def _values(words: Sequence[str], *names: str) -> Iterator[str]:
    """The values of an option."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            yield value if equals else following


def _ports(given: Any) -> dict[int, int]:
    """Of `[ADDRESS:]MACHINE:CONTAINER[/tcp]`, or the long form of compose."""
    ports = {}
    for each in given:
        if isinstance(each, dict):
            outside, inside = str(each.get("published", "")), str(each.get("target", ""))
        else:
            *_, outside, inside = ["", *str(each).partition("/")[0].split(":")]
        if outside.isdigit() and inside.isdigit():
            ports[int(inside)] = int(outside)
    return ports


def _folders(given: Any) -> dict[str, str]:
    """Of `MACHINE:CONTAINER[:ro]`, or the long form of compose; of named volumes nothing is known."""
    folders = {}
    for each in given:
        if isinstance(each, dict):
            outside, inside = str(each.get("source", "")), str(each.get("target", ""))
        else:
            outside, inside, *_ = [*str(each).split(":"), ""]
        outside = _HERE.sub(".", outside)
        if outside.startswith(("/", ".", "~")) and inside:
            folders[inside] = outside
    return folders
