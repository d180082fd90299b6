"""The OpenAPI document: every route of every protocol, with the schemas of its wire structs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

import gateway
from adapters.base import Adapter, Route
from gateway.http.routes import routes

_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


def document(adapters: Mapping[str, Adapter]) -> bytes:
    """The document as JSON (OpenAPI 3.1)."""
    found = routes(adapters)
    # All types in one call: msgspec then shares components by name instead of repeating them.
    types = [type for _, route in found for type in (route.body, route.answer) if type is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for protocol, route in found:
        # OpenAPI's path templates have no converters: `{name:path}` becomes `{name}`.
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(protocol, route, by_type)
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "openapi": "3.1.0",
                "info": {"title": "Interlingua", "version": gateway.__version__},
                "paths": paths,
                "components": {"schemas": components},
            }
        )
    )


def _operation(protocol: str, route: Route, schemas: Mapping[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{protocol}_{route.name}",
        "tags": [protocol],
        "summary": route.summary,
        "responses": {"200": {"description": "OK", "content": _answer(route, schemas)}},
    }
    if names := _PARAMETER.findall(route.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": _content(route.body, schemas)}}
        if route.example is not None:
            operation["requestBody"]["content"]["application/json"]["example"] = route.example
    return operation


def _answer(route: Route, schemas: Mapping[str, Any]) -> dict[str, Any]:
    if route.answer is None:
        return {}
    whole = {"application/json": _content(route.answer, schemas)}
    # OpenAPI 3.1 cannot describe the events of a stream: it is listed as text.
    return whole | ({"text/event-stream": {"schema": {"type": "string"}}} if route.streams else {})


def _content(type: Any, schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema": schemas[repr(type)]}
