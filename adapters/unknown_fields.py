"""The fields of a body that its wire struct does not have: found at any depth, refused or named in a header.

A field whose value is null or empty counts as absent: SDKs send such fields with messages that they got as answers.
What `Any` or a `dict` holds is the client's own (a JSON schema, for instance) and is not looked into.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import quote

from msgspec import inspect

from adapters.base import Headers

IGNORED = "x-interlingua-ignored"
"""The response header that names the fields of the request that had no effect."""

_MAX_FOUND = 64
"""Fields that are collected of one body."""
_MAX_NAMED = 16
"""Fields that the header names."""
_MAX_NAME = 64
"""Characters of one name in the header."""


@dataclass(slots=True, eq=False)
class _Shape:
    """What a value of a type may hold: an object's `fields` (None: any), and the `items` of an array."""

    fields: dict[str, _Shape | None] | None = None
    items: _Shape | None = None


def find_unknown(value: Any, type: Any) -> tuple[str, ...]:
    """The paths of the fields that `type`, a struct or a union of containers of structs, does not have.

    A field that several items of an array have is named once, at the first one: `messages[0].nmae`.
    """
    found: dict[tuple[int, str], str] = {}
    shape = _shape_of(type)
    if shape is not None:
        _walk(value, shape, "", found)
    return tuple(found.values())


def ignored_header(names: tuple[str, ...]) -> Headers:
    """The header that names ignored fields, bounded in length and percent-encoded; none without names."""
    if not names:
        return ()
    shown = [quote(name[:_MAX_NAME], safe="[]") for name in names[:_MAX_NAMED]]
    more = [f"... {len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
    return ((IGNORED, ", ".join(shown + more)),)


def _walk(value: Any, shape: _Shape, path: str, found: dict[tuple[int, str], str]) -> None:
    # The recursion is as deep as the structs nest: a struct that holds itself is bounded by `adapters.body.MAX_DEPTH`.
    if isinstance(value, dict) and shape.fields is not None:
        for name, inner in value.items():
            if inner is None or (not inner and isinstance(inner, list | dict)):
                continue
            known = shape.fields.get(name, _UNKNOWN)
            if known is _UNKNOWN:
                if len(found) < _MAX_FOUND:
                    found.setdefault((id(shape), name), f"{path}.{name}" if path else name)
            elif known is not None and isinstance(inner, list | dict):
                _walk(inner, known, f"{path}.{name}" if path else name, found)
    elif isinstance(value, list) and shape.items is not None:
        for place, item in enumerate(value):
            _walk(item, shape.items, f"{path}[{place}]", found)


_UNKNOWN = _Shape()
"""Stands for a field that a struct does not have."""


@cache
def _shape_of(type: Any) -> _Shape | None:
    return _Shapes().of(inspect.type_info(type))


@dataclass(slots=True, eq=False)
class _Shapes:
    """Builds shapes from msgspec's description of a type; `built` has those of structs, which may hold themselves."""

    built: dict[type, _Shape] = field(default_factory=dict)

    def of(self, info: inspect.Type) -> _Shape | None:
        """The shape of a type; None if it holds no struct."""
        match info:
            case inspect.StructType():
                return self._struct(info)
            case inspect.Metadata():
                return self.of(info.type)
            case inspect.VarTupleType() | inspect.ListType():
                items = self.of(info.item_type)
                return None if items is None else _Shape(items=items)
            case inspect.UnionType():
                shapes = [shape for member in info.types if (shape := self.of(member)) is not None]
                # At most one member is an object and one an array, because msgspec could not tell others apart.
                objects = [shape.fields for shape in shapes if shape.fields is not None]
                arrays = [shape.items for shape in shapes if shape.items is not None]
                if len(shapes) < 2:
                    return shapes[0] if shapes else None
                return _Shape(objects[0] if objects else None, arrays[0] if arrays else None)
        return None

    def _struct(self, info: inspect.StructType) -> _Shape:
        shape = self.built.get(info.cls)
        if shape is None:
            # Known before its fields are: a field may be of the same type.
            shape = self.built[info.cls] = _Shape({})
            assert shape.fields is not None
            tag = {} if info.tag_field is None else {info.tag_field: None}
            shape.fields |= tag | {each.encode_name: self.of(each.type) for each in info.fields}
        return shape


class Unknown(dict[str, Any]):
    """The unknown fields of a body's top level, with their values; `paths` are those of any depth."""

    __slots__ = ("paths",)

    def __init__(self, fields: dict[str, Any], paths: tuple[str, ...]) -> None:
        super().__init__(fields)
        self.paths = paths
