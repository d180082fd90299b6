"""The types of the official SDKs' requests as data, read from the installed SDKs.

`tests.application.every_field` makes a request for each field of them. Run
`python -m tests.clients.request_types` in each environment that has one of the SDKs to write the files anew.
"""

from __future__ import annotations

import importlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "application" / "request_types"

REQUESTS = {
    "openai": {
        "/v1/chat/completions": "openai.types.chat.completion_create_params.CompletionCreateParamsNonStreaming",
        "/v1/completions": "openai.types.completion_create_params.CompletionCreateParamsNonStreaming",
        "/v1/responses": "openai.types.responses.response_create_params.ResponseCreateParamsNonStreaming",
        "/v1/responses/input_tokens": "openai.types.responses.input_token_count_params.InputTokenCountParams",
        "/v1/embeddings": "openai.types.embedding_create_params.EmbeddingCreateParams",
    },
    "anthropic": {
        "/v1/messages": "anthropic.types.message_create_params.MessageCreateParamsNonStreaming",
        "/v1/messages/count_tokens": "anthropic.types.message_count_tokens_params.MessageCountTokensParams",
    },
}
"""The SDK -> the path of each request -> the name of its type."""

Described = str | list[Any]
"""A type: "str", "int", "float", "bool", "null", "map" or "any"; "#" and the name of an object; or a list of "list" and
the type of its items, of "union" and its types, or of "words" and the strings.
"""


def path_of(sdk: str) -> Path:
    """The file that holds the types of an SDK's requests."""
    return FOLDER / f"{sdk}.json"


def described(sdk: str) -> dict[str, Any]:
    """The requests of an SDK: the name of the object at each path, and the fields of all objects."""
    objects: dict[str, Any] = {}
    requests = {}
    for path, name in REQUESTS[sdk].items():
        module, _, type = name.rpartition(".")
        requests[path] = _described(getattr(importlib.import_module(module), type), objects)
    return {"requests": requests, "objects": dict(sorted(objects.items()))}


def written(sdk: str) -> str:
    """The text of an SDK's file: an object on each line."""
    found = described(sdk)
    lines = [f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in found["objects"].items()]
    objects = ",\n".join(lines)
    return f'{{"requests": {json.dumps(found["requests"])}, "objects": {{\n{objects}\n}}}}\n'


def _described(type: Any, objects: dict[str, Any]) -> Described:
    origin, arguments = typing.get_origin(type), typing.get_args(type)
    if origin is typing.Annotated or getattr(origin, "_name", None) in ("Required", "NotRequired"):
        return _described(arguments[0], objects)
    if origin is typing.Union or origin is types.UnionType:
        return _union(arguments, objects)
    if origin is typing.Literal:
        # Sorted, as unions are: Python takes such types for equal in any order, and returns the one that it saw first.
        return ["words", *sorted(arguments, key=str)]
    if type is dict or (origin is not None and issubclass(origin, Mapping)):
        return "map"
    if origin is not None and issubclass(origin, Iterable):
        return ["list", _described(arguments[0], objects)]
    if hasattr(type, "__total__"):
        return _object(type, objects)
    if type is types.NoneType:
        return "null"
    return type.__name__ if type in (str, int, float, bool) else "any"


def _union(members: tuple[Any, ...], objects: dict[str, Any]) -> Described:
    found: list[Described] = []
    for member in members:
        inner = _described(member, objects)
        found += [each for each in (inner[1:] if inner[0] == "union" else [inner]) if each not in found]
    # Beside any string, known ones (models) say nothing; "any" is a class for answers that come back.
    said = [each for each in found if each != "any" and not (each[0] == "words" and "str" in found)]
    said.sort(key=lambda each: (isinstance(each, list), each[0] == "#", json.dumps(each)))
    return said[0] if len(said) == 1 else ["union", *said]


def _object(type: Any, objects: dict[str, Any]) -> Described:
    """A `TypedDict`; a required field's name ends in an exclamation mark."""
    name = f"{type.__module__.partition('.types.')[2]}.{type.__qualname__}"
    if name not in objects:
        objects[name] = {}  # known before its fields are: a field may be of the same type
        for field, hint in typing.get_type_hints(type, include_extras=True).items():
            # Not by `__required_keys__`: where annotations are strings, it does not see `Required`.
            qualifier = getattr(typing.get_origin(hint), "_name", None)
            required = qualifier == "Required" or (type.__total__ and qualifier != "NotRequired")
            objects[name][field + "!" * required] = _described(hint, objects)
    return f"#{name}"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for sdk in REQUESTS:
        try:
            importlib.import_module(sdk)
        except ImportError:
            continue
        path_of(sdk).write_text(written(sdk))
