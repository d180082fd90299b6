"""Messages of Protocol Buffers, made from a `.proto` file when they are first needed.

Strategy: the `.proto` files in `schemas/` are what people read and what `protoc` would compile. Generated code would be
a second copy, bound to a version of the library. The files here need little of the language, so their declarations are
read with regular expressions: messages and enums, also nested ones, fields, `repeated`, `oneof` and maps with string
keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

_FIELD = re.compile(
    r"(?:(?P<repeated>repeated) )?(?:map<string, (?P<value>\w+)>|(?P<type>\w+)) (?P<name>\w+) = (?P<number>\d+);"
)
_OPENING = re.compile(r"(?P<kind>message|enum|oneof|service) (?P<name>\w+) {")
_VALUE = re.compile(r"(?P<name>\w+) = (?P<number>\d+);")
_SCALARS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}


def load(file: Path) -> dict[str, Any]:
    """The message classes of a `.proto` file, by their names in its package (`ModelInferRequest.InferInputTensor`).

    Raises:
        ValueError: the file has a line that is not understood.
    """
    lines = [line.strip() for line in file.read_text().splitlines()]
    reader = _Reader(line for line in lines if line and not line.startswith("//"))
    read = reader.file(file.name)
    # A pool of its own: another package of this process may bring the same messages.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(read)
    prefix = f"{read.package}."
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(prefix + name))
        for name in _names(read.message_type)
    }


def _names(messages: Any, inside: str = "") -> Iterator[str]:
    for message in messages:
        if not message.options.map_entry:
            yield inside + message.name
            yield from _names(message.nested_type, f"{inside}{message.name}.")


class _Reader:
    """Reads the lines of a file in order."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._scope: list[str] = []
        self._enums: set[str] = set()
        self._known: set[str] = set()
        self._unresolved: list[tuple[FieldDescriptorProto, str]] = []

    def file(self, name: str) -> FileDescriptorProto:
        """The whole file."""
        read = descriptor_pb2.FileDescriptorProto(name=name, syntax="proto3")
        for line in self._lines:
            if line.startswith("package "):
                read.package = line.removeprefix("package ").rstrip(";")
                self._scope.append(f".{read.package}")
            elif opening := _OPENING.fullmatch(line):
                match opening["kind"]:
                    case "message":
                        self._message(read.message_type.add(name=opening["name"]))
                    case "enum":
                        self._enum(read.enum_type.add(name=opening["name"]))
                    case _:
                        self._skip()
            elif not line.startswith("syntax "):
                raise ValueError(f"{name}: {line!r} is not understood")
        self._resolve()
        return read

    def _message(self, message: DescriptorProto) -> None:
        self._scope.append(message.name)
        self._known.add(".".join(self._scope))
        oneof: int | None = None
        for line in self._lines:
            if line == "}" and oneof is not None:
                oneof = None
            elif line == "}":
                break
            elif opening := _OPENING.fullmatch(line):
                match opening["kind"]:
                    case "message":
                        self._message(message.nested_type.add(name=opening["name"]))
                    case "enum":
                        self._enum(message.enum_type.add(name=opening["name"]))
                    case _:
                        oneof = len(message.oneof_decl)
                        message.oneof_decl.add(name=opening["name"])
            else:
                self._field(message, line, oneof)
        self._scope.pop()

    def _field(self, message: DescriptorProto, line: str, oneof: int | None) -> None:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise ValueError(f"{message.name}: {line!r} is not understood")
        field = message.field.add(name=found["name"], number=int(found["number"]))
        repeated = found["repeated"] or found["value"]
        field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
        if oneof is not None:
            field.oneof_index = oneof
        self._type(field, found["type"] or self._entry(message, found["name"], found["value"]))

    def _entry(self, message: DescriptorProto, name: str, value: str) -> str:
        """Add the message of a map's entries, which are its fields on the wire; returns its name."""
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        optional = FieldDescriptorProto.LABEL_OPTIONAL
        self._type(entry.field.add(name="key", number=1, label=optional), "string")
        self._type(entry.field.add(name="value", number=2, label=optional), value)
        self._known.add(".".join((*self._scope, entry.name)))
        return str(entry.name)

    def _type(self, field: FieldDescriptorProto, name: str) -> None:
        if name in _SCALARS:
            field.type = _SCALARS[name]
        else:
            field.type_name = ".".join(self._scope)  # where the name is looked up, from the inside to the outside
            self._unresolved.append((field, name))

    def _enum(self, enum: EnumDescriptorProto) -> None:
        name = ".".join((*self._scope, enum.name))
        self._known.add(name)
        self._enums.add(name)
        for line in self._lines:
            if line == "}":
                return
            if (value := _VALUE.fullmatch(line)) is None:
                raise ValueError(f"{enum.name}: {line!r} is not understood")
            enum.value.add(name=value["name"], number=int(value["number"]))

    def _skip(self) -> None:
        """Skip a service: its methods are the routes of an adapter."""
        for line in self._lines:
            if line == "}":
                return

    def _resolve(self) -> None:
        """Give the fields of messages and enums the whole names of their types, once all are known."""
        for field, name in self._unresolved:
            scope = field.type_name
            while f"{scope}.{name}" not in self._known:
                if not scope:
                    raise ValueError(f"the field {field.name} has the unknown type {name}")
                scope = scope.rpartition(".")[0]
            field.type_name = f"{scope}.{name}"
            is_enum = field.type_name in self._enums
            field.type = FieldDescriptorProto.TYPE_ENUM if is_enum else FieldDescriptorProto.TYPE_MESSAGE
