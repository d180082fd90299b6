"""Reading another server's configuration: what is never taken of it is reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import msgspec
import yaml

from gateway.config import KeyPath

_T = TypeVar("_T")

# The bounds of our own settings: what is outside of them is reported here, with its line.
SECONDS = cast("type[float]", Annotated[float, msgspec.Meta(gt=0, le=1e9)])
AMOUNT = cast("type[float]", Annotated[float, msgspec.Meta(ge=0, le=1e9)])
COUNT = cast("type[int]", Annotated[int, msgspec.Meta(ge=1)])
COUNT_OR_NONE = cast("type[int]", Annotated[int, msgspec.Meta(ge=0)])

UNKNOWN = "the gateway has no counterpart"


class UnreadableError(Exception):
    """The text is none of the peer's; the error says why."""


class Left(NamedTuple):
    """A field that was not carried over: its line, 0 if that is not known; its place; why."""

    line: int
    place: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.place}: {self.why}" if self.line else f"{self.place}: {self.why}"


@dataclass(slots=True, eq=False)
class Fields:
    """A table of a foreign configuration, and those below it.

    Attributes:
        values: the table.
        left: where fields are reported that are not carried over; all tables of a configuration share it.
        lines: the lines of keys, by their path from the configuration's root.
        path: of this table from the root.
    """

    values: dict[str, Any]
    left: list[Left] = field(default_factory=list)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    path: KeyPath = ()
    _taken: set[str] = field(default_factory=set)

    def take(self, name: str, kind: type[_T], default: _T | None = None) -> _T | None:
        """A field's value; the default if it is absent or, which is reported, of another type or out of bounds."""
        self._taken.add(name)
        if (value := self.values.get(name)) is None:
            return default
        try:
            return msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as error:
            self.leave(name, f"{value!r} is not understood: {error}")
            return default

    def leave(self, name: str, why: str) -> None:
        """Report a field, if it is there, as not carried over."""
        self._taken.add(name)
        if name in self.values:
            path = (*self.path, name)
            self.left.append(Left(self._line(path), _shown(path), why))

    def drop(self, *names: str) -> None:
        """Pass over fields that need no counterpart."""
        self._taken.update(names)

    def below(self, name: str) -> Fields:
        """The table under a name; an empty one if there is none."""
        self._taken.add(name)
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            self.leave(name, "it is no table")
        return self._child(value if isinstance(value, dict) else {}, (name,))

    def each(self, name: str) -> Iterator[Fields]:
        """The tables of a list."""
        self._taken.add(name)
        values = self.values.get(name)
        if values is not None and not isinstance(values, list):
            self.leave(name, "it is no list")
            return
        for place, value in enumerate(values or ()):
            if isinstance(value, dict):
                yield self._child(value, (name, place))
            else:
                path = (*self.path, name, place)
                self.left.append(Left(self._line(path), _shown(path), "it is no table"))

    def leave_rest(self, reasons: Mapping[str, str] = {}) -> None:
        """Report what was not taken and is not empty, each field for its reason."""
        for name, value in self.values.items():
            if name not in self._taken and value not in (None, "", [], {}):
                self.leave(name, reasons.get(name, UNKNOWN))

    def _child(self, value: dict[Any, Any], names: KeyPath) -> Fields:
        return Fields({str(key): each for key, each in value.items()}, self.left, self.lines, (*self.path, *names))

    def _line(self, path: KeyPath) -> int:
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)


def read_yaml(text: str) -> Fields:
    """A YAML or JSON text, with the lines of its keys.

    Raises:
        UnreadableError: it is neither, or no table.
    """
    # YAML 1.1 takes no tabs between tokens, which JSON does; inside of JSON's strings there are none.
    is_json = text.lstrip().startswith("{")
    loader = yaml.SafeLoader(text.replace("\t", " ") if is_json else text)
    lines: dict[KeyPath, int] = {}
    try:
        node = loader.get_single_node()
        value = loader.construct_document(node) if node is not None else None
    except yaml.YAMLError as error:
        raise UnreadableError(" ".join(str(error).split())) from None
    except RecursionError:
        raise UnreadableError("it is nested too deeply") from None
    finally:
        loader.dispose()
    if not isinstance(value, dict):
        raise UnreadableError("it is no table of settings")
    _note_lines(node, (), lines, set())
    return Fields({str(key): each for key, each in value.items()}, lines=lines)


def _note_lines(node: Any, path: KeyPath, lines: dict[KeyPath, int], seen: set[int]) -> None:
    if id(node) in seen:  # an alias: what it stands for has its lines where it was written
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, str(key.value))
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines, seen)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            lines[*path, place] = value.start_mark.line + 1
            _note_lines(value, (*path, place), lines, seen)


def _shown(path: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
