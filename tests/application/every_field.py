"""A request for each field of the official SDKs' request types, from the descriptions in `request_types`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "request_types"
Body = dict[str, Any]

IMAGE = "data:image/png;base64,iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}}
_FUNCTION = {"name": "f", "parameters": SCHEMA}
_TOOL = {"type": "function", "function": _FUNCTION}

BASES: dict[str, Body] = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": "m", "prompt": "x"},
    "/v1/responses": {"model": "m", "input": "x", "store": False},
    "/v1/responses/input_tokens": {"model": "m", "input": "x"},
    "/v1/embeddings": {"model": "m", "input": "x"},
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]},
    "/v1/messages/count_tokens": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
}
"""The path of a request -> the smallest body."""

NEEDS: dict[str, dict[str, Body]] = {
    "/v1/chat/completions": {
        "top_logprobs": {"logprobs": True},
        "tool_choice": {"tools": [_TOOL]},
        "parallel_tool_calls": {"tools": [_TOOL]},
        "function_call": {"functions": [_FUNCTION]},
        "stream_options": {"stream": True},
    },
    "/v1/completions": {"stream_options": {"stream": True}, "best_of": {"n": 1}},
    "/v1/responses/input_tokens": {
        "tool_choice": {"tools": [{"type": "function", **_FUNCTION}]},
        "parallel_tool_calls": {"tools": [{"type": "function", **_FUNCTION}]},
    },
    "/v1/responses": {
        "tool_choice": {"tools": [{"type": "function", **_FUNCTION}]},
        "parallel_tool_calls": {"tools": [{"type": "function", **_FUNCTION}]},
        "top_logprobs": {"include": ["message.output_text.logprobs"]},
        "stream_options": {"stream": True},
    },
    "/v1/messages": {"tool_choice": {"tools": [{"name": "f", "input_schema": SCHEMA}]}},
    "/v1/messages/count_tokens": {"tool_choice": {"tools": [{"name": "f", "input_schema": SCHEMA}]}},
}
"""The path of a request -> a field -> what it means nothing without."""

_VALUES: dict[str, list[Any]] = {
    "str": ["x", "zz"],
    "int": [1, 7],
    "float": [0.5, 0.75],
    "bool": [True, False],
    "map": [{"zz": "zz"}],
    "any": ["zz"],
    "null": [],
}
"""A type -> its values, the first one for required fields of objects."""

_SCHEMAS = [SCHEMA, {"type": "object", "properties": {"zz": {"enum": [2]}}}]
_OF_FIELDS: dict[tuple[str, str], list[Any]] = {
    ("model", "str"): ["m"],
    ("name", "str"): ["f", "zz"],
    ("arguments", "str"): ["{}", '{"a": 1}'],
    ("url", "str"): [IMAGE, f"{IMAGE[:-1]}A"],
    ("image_url", "str"): [IMAGE, f"{IMAGE[:-1]}A"],
    ("seed", "int"): [5],
    ("budget_tokens", "int"): [2000, 3000],
    ("input", "map"): [{"a": 1}, {"a": 2}],
    ("logit_bias", "map"): [{"5": 1}],
    ("parameters", "map"): _SCHEMAS,
    ("schema", "map"): _SCHEMAS,
    ("input_schema", "map"): _SCHEMAS,
    ("tools", "map"): [{"type": "function", "name": "f", "function": {"name": "f"}}],
}
"""Values of fields that not every value is right for."""

_ALWAYS = {
    "AssistantMessageParam": ("content",),
    "ResponseInputImageParam": ("image_url",),
    "FunctionCallOutput": ("call_id",),
    "JSONSchema": ("schema",),
}
"""Fields that an object means nothing without, though its type lets them be absent."""


@dataclass(slots=True, eq=False)
class Field:
    """A field of a request.

    Attributes:
        place: where it is, with the type of the object that holds it where there are several.
        without: the body without the field, or with another value where it is required.
        bodies: bodies with the field, one for each value.
        inner: the fields of the object that is its value.
    """

    place: str
    without: Body
    bodies: list[Body]
    inner: Callable[[], Iterator[Field]]


class RequestTypes:
    """The types of one SDK's requests."""

    def __init__(self, sdk: str) -> None:
        found = json.loads((FOLDER / f"{sdk}.json").read_text())
        self.paths: dict[str, str] = found["requests"]
        self._objects: dict[str, dict[str, Any]] = found["objects"]

    def fields(self, path: str) -> Iterator[Field]:
        """The fields of the request of a path, outermost first."""
        for name, type in self._objects[self.paths[path][1:]].items():
            field = name.rstrip("!")
            base = BASES[path] | NEEDS.get(path, {}).get(field, {})
            yield from self._forms(
                type, field, field, base, lambda value, base=base, field=field: base | {field: value}
            )

    def _forms(
        self,
        type: Any,
        place: str,
        field: str,
        without: Body,
        build: Callable[[Any], Body],
        within: tuple[str, ...] = (),
    ) -> Iterator[Field]:
        """The fields that a value of the type stands for: one for each member of a union."""
        if isinstance(type, list) and type[0] == "union":
            for each in type[1:]:
                yield from self._forms(each, place, field, without, build, within)
        elif isinstance(type, list) and type[0] == "list":
            yield from self._forms(type[1], f"{place}[0]", field, without, lambda value: build([value]), within)
        elif isinstance(type, str) and type[0] == "#":
            if type in within:
                return
            smallest = self._smallest(type, field)
            shown = f"{place}<{type.rpartition('.')[2]}>"
            yield Field(
                shown,
                without,
                [build(smallest)],
                lambda: self._fields(type[1:], shown, smallest, build, (*within, type)),
            )
        elif values := [value for value in self._values(type, field) if build(value) != without]:
            yield Field(place, without, [build(value) for value in values], lambda: iter(()))

    def _fields(
        self, object: str, place: str, smallest: Body, build: Callable[[Body], Body], within: tuple[str, ...]
    ) -> Iterator[Field]:
        for name, type in self._objects[object].items():
            field = name.rstrip("!")
            if isinstance(type, list) and type[0] == "words" and len(type) == 2 and field in smallest:
                continue  # tells the object's type
            yield from self._forms(
                type,
                f"{place}.{field}",
                field,
                build(smallest),
                lambda value, field=field: build(smallest | {field: value}),
                within,
            )

    def _smallest(self, type: Any, field: str) -> Any:
        if isinstance(type, list) and type[0] == "union":
            return self._smallest(next(each for each in type[1:] if each != "null"), field)
        if isinstance(type, list) and type[0] == "list":
            return [self._smallest(type[1], field)]
        if isinstance(type, str) and type[0] == "#":
            always = next((fields for name, fields in _ALWAYS.items() if type.endswith(name)), ())
            return {
                field: self._smallest(each, field)
                for name, each in self._objects[type[1:]].items()
                if (field := name.rstrip("!")) != name or field in always
            }
        return self._values(type, field)[0]

    @staticmethod
    def _values(type: Any, field: str) -> list[Any]:
        if isinstance(type, list):
            return list(type[1:])
        return _OF_FIELDS.get((field, type), _VALUES[type])
