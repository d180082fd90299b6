"""What an importer makes: tables of our configuration, written as TOML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.importers.fields import Left

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 118


@dataclass(slots=True, eq=False)
class Draft:
    """A configuration in the making.

    Attributes:
        server, backends, endpoints: the tables of the file.
        comments: lines at its beginning: what is still to be done.
        left: what could not be carried over.
    """

    left: list[Left] = field(default_factory=list)
    server: dict[str, Any] = field(default_factory=dict)
    backends: dict[str, dict[str, Any]] = field(default_factory=dict)
    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)

    def backend(self, name: str, options: dict[str, Any]) -> str:
        """Add a backend, unless there is one with the same options, and return its name."""
        for known, section in self.backends.items():
            if section == options:
                return known
        name = unique(slug(name), self.backends)
        self.backends[name] = options
        return name

    def comment(self, text: str) -> None:
        """Add a line to the beginning of the file, once."""
        if text not in self.comments:
            self.comments.append(text)

    def toml(self) -> str:
        """The file."""
        lines = [f"# {line}" for line in self.comments]
        if self.server:
            lines += ["", "[server]", *_pairs(self.server)]
        for name, section in self.backends.items():
            lines += ["", f"[backends.{_key(name)}]", *_pairs(section)]
        for name, section in self.endpoints.items():
            lines += ["", f"[endpoints.{_key(name)}]", *_pairs(section)]
        return "\n".join(lines).lstrip("\n") + "\n"


def is_alias(name: str) -> bool:
    """Whether an endpoint can have the name as an alias."""
    return re.fullmatch(r"[^\[\]\s]{1,256}", name) is not None


def slug(name: str) -> str:
    """A name as that of a served entity or a backend, which is sent in a header and has no slashes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:128] or "model"


def unique(name: str, taken: Iterable[str]) -> str:
    """The name, with a number at its end if it is taken."""
    names = set(taken)
    if name not in names:
        return name
    return next(found for number in range(2, len(names) + 3) if (found := f"{name[:120]}-{number}") not in names)


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        line = f"{_key(key)} = {_value(value)}"
        # An inline table may not be broken in TOML 1.0, a list may: each of its tables gets a line.
        if len(line) > _WIDTH and isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{_key(key)} = ["
            yield from (f"  {_value(each)}," for each in value)
            yield "]"
        else:
            yield line


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(key))} = {_value(each)}" for key, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, str):
        # A JSON string is a TOML string, except that TOML escapes DEL as well.
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    return msgspec.json.encode(value).decode()
