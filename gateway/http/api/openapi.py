"""The OpenAPI document: every route, with the schemas of its wire structs, its errors and an example of its stream.

Nothing is listed by hand. Routes, schemas and examples of bodies come from the protocols' codecs. Errors and streams
are what the codecs write for errors of each kind and for a few events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from litestar.handlers import HTTPRouteHandler

import gateway
from adapters.base import Adapter, Call, Route, ServerCodec
from gateway.access.keys import KEY_HEADERS
from gateway.http.api import experiment, keys
from schemas import errors
from schemas.catalog import Catalog, ModelCard
from schemas.ir import Delta, Finished, FinishReason, Generate, Started, Token, Usage

_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_TIME = re.compile(rb'"(created|created_at|completed_at|total_duration|(?:prompt_)?eval_duration)":(?:\d+|"[^"]*")')
_DESCRIBED = ("unauthorized", "model_not_found", "internal")
_RUN = (
    *("invalid_request", "malformed_body", "unsupported", "context_length", "body_too_large", "request_timeout"),
    *("overloaded", "shutting_down", "backend_failed", "backend_unavailable", "timeout", "incomplete"),
)
_KINDS = {
    "describe": _DESCRIBED,
    "object": (*_DESCRIBED, "invalid_request", "malformed_body", "unsupported", "body_too_large"),
    "manage": (*_DESCRIBED, "invalid_request", "malformed_body", "forbidden", "conflict"),
    "store": (*_DESCRIBED, "invalid_request", "malformed_body", "body_too_large", "rate_limited", "overloaded"),
}
"""The kind of a route -> the kinds of errors that it may have; all other routes run a model."""

_MODEL = "interlingua"
_EVENTS = (
    Started(_MODEL, 8),
    Delta(text="Par", tokens=(Token(70, "Par", -0.5),)),
    Finished(text="is", tokens=(Token(71, "is", -0.25),), reason=FinishReason.EOS, generated=2),
    Usage(8, 2),
)
"""The answer of the streams that are shown."""

Json = dict[str, Any]


def document(adapters: Mapping[str, Adapter], own: Sequence[HTTPRouteHandler] = ()) -> bytes:
    """The document as JSON (OpenAPI 3.1); `own` are the routes of no protocol."""
    codecs = {name: adapter.server(next(iter(adapter.dialects.values()))) for name, adapter in adapters.items()}
    # Routes of requests with a header or a field of their own come last: they are added to the same path's operation.
    found = sorted(
        ((name, codec, route) for name, codec in codecs.items() for route in codec.routes),
        key=lambda item: item[2].header is not None or bool(item[2].fields),
    )
    # All types in one call: msgspec then shares components by name instead of repeating them.
    types = [type for _, _, route in found for type in (route.body, route.answer) if type is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    responses = {
        f"{name}_{status}": reply for name, codec in codecs.items() for status, reply in _errors(codec).items()
    }
    paths: dict[str, Json] = {}
    ids: set[str] = set()
    for protocol, codec, route in found:
        methods, method = paths.setdefault(_path(route.path), {}), route.method.lower()
        described = _operation(protocol, codec, route, by_type)
        if method in methods:
            _add_variant(methods[method], described, route)
            continue
        if described["operationId"] in ids:
            described["operationId"] += _PARAMETER.sub(r"\1", route.path).replace("/", "_")
        ids.add(described["operationId"])
        methods[method] = described
    for path, method, described in _own_operations(own):
        paths.setdefault(path, {})[method] = described
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "openapi": "3.1.0",
                "info": {"title": "Interlingua", "version": gateway.__version__},
                "security": [{}, *({name: []} for name in _security_schemes())],
                "paths": paths,
                "components": {
                    "schemas": components,
                    "responses": responses,
                    "securitySchemes": _security_schemes(),
                },
            }
        )
    )


def _security_schemes() -> Json:
    """The ways to send a key; no key is needed where none is configured."""
    headers = {
        name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS if name != "authorization"
    }
    return {"bearer": {"type": "http", "scheme": "bearer"}} | headers


def _path(template: str) -> str:
    # OpenAPI's path templates have no converters: `{name:path}` becomes `{name}`.
    return _PARAMETER.sub(r"{\1}", template)


def _operation(protocol: str, codec: ServerCodec, route: Route, schemas: Mapping[str, Any]) -> Json:
    statuses = {codec.error(_error(kind)).status for kind in _kinds(route)}
    failures = {str(status): {"$ref": f"#/components/responses/{protocol}_{status}"} for status in sorted(statuses)}
    operation: Json = {
        "operationId": f"{protocol}_{route.name}",
        "tags": [protocol],
        "summary": route.summary,
        "responses": {"200": {"description": "OK", "content": _answer(codec, route, schemas)}} | failures,
    }
    if names := _PARAMETER.findall(route.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if route.open:
        operation["security"] = []
    if route.body is not None:
        media_type = "multipart/form-data" if route.form else "application/json"
        operation["requestBody"] = {"required": True, "content": {media_type: _content(route.body, schemas)}}
        if route.example is not None:
            operation["requestBody"]["content"]["application/json"]["example"] = route.example
    return operation


def _add_variant(operation: Json, variant: Json, route: Route) -> None:
    """Add to an operation what another protocol's requests with a header, or a field of the body, send and get."""
    contents = [(each["responses"]["200"]["content"] for each in (operation, variant))]
    if route.body is not None:
        contents.append(each["requestBody"]["content"] for each in (operation, variant))
    for content, other in contents:
        schemas = [each["application/json"]["schema"] for each in (content, other)]
        content["application/json"]["schema"] = {"oneOf": schemas}
    operation["tags"] += variant["tags"]
    if route.header is None:
        fields = ", ".join(sorted(route.fields))
        operation["description"] = f"Bodies with one of the fields {fields} are those of {variant['operationId']}."
        return
    operation.setdefault("parameters", []).append(
        {
            "name": route.header,
            "in": "header",
            "required": False,
            "description": f"With this header the answer is that of {variant['operationId']}, the second schema.",
            "schema": {"type": "string"},
        }
    )


def _own_operations(own: Iterable[HTTPRouteHandler]) -> Iterable[tuple[str, str, Json]]:
    """Path, method and description of the routes of no protocol."""
    for handler in own:
        for path in () if handler.opt.get("undescribed") else handler.paths:
            for method in sorted(set(handler.http_methods) - {"HEAD"}):
                described = _own_operation(handler.fn.__doc__, open=not handler.opt.get("role"))
                if query := handler.opt.get("query"):
                    described["parameters"] = [
                        {"name": name, "in": "query", "description": what, "schema": {"type": "string"}}
                        for name, what in query.items()
                    ]
                yield path, method.lower(), described
    yield "/", "get", _own_operation("Answer while the process lives.", open=True)
    for path, (verb, answer) in (experiment.PATHS | keys.PATHS).items():
        yield path, verb.lower(), _own_operation(answer.__doc__, open=False, parameter="name")


def _own_operation(doc: str | None, *, open: bool, parameter: str | None = None) -> Json:
    operation: Json = {
        "tags": ["gateway"],
        "summary": (doc or "").strip().partition("\n")[0],
        "responses": {"default": {"description": "OK, or an error in the form of the nearest protocol"}},
    }
    if parameter is not None:
        operation["parameters"] = [{"name": parameter, "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation | ({"security": []} if open else {})


# --- errors -------------------------------------------------------------------------------------------------------


def _kinds(route: Route) -> tuple[str, ...]:
    kinds = _KINDS.get(route.kind, (*_DESCRIBED, *_RUN))
    return tuple(kind for kind in kinds if kind != "unauthorized") if route.open else kinds


def _errors(codec: ServerCodec) -> dict[int, Json]:
    """Status -> the protocol's response for errors with it, with one example for each kind."""
    found: dict[int, Json] = {}
    for kind in dict.fromkeys(kind for kinds in (*_KINDS.values(), _DESCRIBED, _RUN) for kind in kinds):
        reply = codec.error(_error(kind))
        response = found.setdefault(reply.status, {"description": "", "content": {}})
        response["description"] = ", ".join(filter(None, (response["description"], kind.replace("_", " "))))
        if reply.body:
            content = response["content"].setdefault(reply.media_type.partition(";")[0], {"examples": {}})
            content["examples"][kind] = {"value": _shown(reply.body)}
    return found


def _shown(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:  # plain text
        return body.decode()


def _error(kind: str) -> errors.GatewayError:
    """An error of a kind, with the kind as its message."""
    classes: list[Any] = [errors.RequestError, errors.Overloaded, errors.BackendError, errors.InternalError]
    for each in classes:  # grows while it is read: breadth first
        classes += each.__subclasses__()
    type = next(each for each in classes if each.kind == kind)
    if type is errors.InternalError:
        return errors.InternalError()
    fields = {"feature": "tools"} if issubclass(type, errors.UnsupportedFeature) else {}
    error: errors.GatewayError = type(f"{kind.replace('_', ' ').capitalize()}.", **fields)
    return error


# --- answers ------------------------------------------------------------------------------------------------------


def _answer(codec: ServerCodec, route: Route, schemas: Mapping[str, Any]) -> Json:
    if route.answer is None:
        return {}
    whole = {"application/json": _content(route.answer, schemas)}
    if not route.streams:
        return whole
    # OpenAPI 3.1 cannot describe the events of a stream, so a whole one is shown.
    media_type, example = _stream(codec, route)
    return whole | {media_type: {"schema": {"type": "string"}} | ({"example": example} if example else {})}


def _stream(codec: ServerCodec, route: Route) -> tuple[str, str]:
    """The media type and the bytes of a short stream as the codec writes it; no bytes if no route has an example."""
    similar = (other for other in codec.routes if other.example is not None and issubclass(route.body, other.body))
    asked = route.example or next((other.example for other in similar), None)
    if asked is None:  # in a protocol of another package
        return "text/event-stream", ""
    body = msgspec.json.encode(asked).replace(b"{model}", _MODEL.encode())
    catalog = Catalog({_MODEL: ModelCard(name=_MODEL)}, _MODEL)
    names = dict.fromkeys(_PARAMETER.findall(route.path), _MODEL)
    request = codec.decode(route, body, Call("0", catalog, names | ({"version": "1"} if "version" in names else {})))
    assert isinstance(request, Generate)
    encoder = codec.encoder(msgspec.structs.replace(request, stream=True))
    # The document must be the same at every start.
    return encoder.media_type.partition(";")[0], _TIME.sub(rb'"\1":0', encoder.feed(_EVENTS)).decode()


def _content(type: Any, schemas: Mapping[str, Any]) -> Json:
    return {"schema": schemas[repr(type)]}
