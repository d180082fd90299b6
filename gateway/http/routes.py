"""The routes of all protocols, behind one raw ASGI handler.

Raw, because the adapters own every byte: Litestar carries the application, but neither reads bodies nor writes answers
here. A path that no route matches is refused in the form of the protocol whose paths are nearest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import msgspec
from litestar.handlers import ASGIRouteHandler, asgi
from litestar.types import HTTPScope, Receive, Send

from adapters.base import Adapter, Reply, Route
from adapters.dialect import option_names, with_options
from gateway.config import Config, ConfigError, ServerSection, nearest
from gateway.http.answering import status_headers
from gateway.http.api import experiment, keys
from gateway.http.request import Operation, RequestHandler
from gateway.service import Service
from schemas.errors import GatewayError, MethodNotAllowed, RouteNotFound

T = TypeVar("T")
Found = tuple[T, dict[str, str]]
Methods = dict[str, Operation]
Table = dict[str, Methods]
"""Path template -> method -> operation."""
_Mounted = tuple[dict[str, str], str | None]
"""The dialects of a mount by protocol, and the endpoint that answers where no model is named."""

_PARAMETER = re.compile(r"{(\w+)(:path)?}")  # the template syntax of `adapters.base.Route.path`


class Paths(Generic[T]):
    """Values by path template; `{name}` matches one segment, `{name:path}` the rest. A trailing slash is ignored.

    Not Litestar's, for three reasons: its raw ASGI handlers cannot have path parameters (2.25 raises KeyError); its
    trie does not backtrack (`/serving-endpoints/{name}/invocations` is not found for an endpoint called `chat` where
    another route begins with `/serving-endpoints/chat`); and it matches after percent-decoding, so a model's name could
    not hold a slash.
    """

    def __init__(self) -> None:
        self._plain: dict[str, T] = {}
        self._patterns: dict[str, list[tuple[re.Pattern[str], T]]] = {}

    def add(self, template: str, value: T) -> None:
        """Map `template` to `value`."""
        if "{" not in template:
            self._plain[template] = value
            return
        pattern = "".join(_segment(segment) for segment in template[1:].split("/"))
        # Patterns are grouped by their first segment, so that a lookup tries a few of them and not all.
        self._patterns.setdefault(_first(template), []).append((re.compile(pattern), value))

    def find(self, path: str) -> Found[T] | None:
        """The value and the parameters of the first template that matches `path`, which is percent-encoded."""
        # Most requests have a fixed path: one dictionary lookup, no regular expression.
        plain = self._plain.get(path)
        if plain is not None:
            return plain, {}
        path = path.rstrip("/") or "/"
        for pattern, value in self._patterns.get(_first(path), ()):
            if match := pattern.fullmatch(path):
                # Unquoted after the match: `%2F` in a model's name must not split its segment.
                return value, {name: unquote(part) for name, part in match.groupdict().items()}
        plain = self._plain.get(path)
        return None if plain is None else (plain, {})


class Mounts:
    """The routes of every mount and listener.

    Args:
        adapters: the protocols, by name.
        config: picks dialects, and overrides fields of them.

    Raises:
        ConfigError: a dialect or one of its fields does not exist, or two routes have the same path and method.
    """

    def __init__(self, adapters: Mapping[str, Adapter], config: Config) -> None:
        self._adapters = adapters
        self._dialects = _dialects(adapters, config.server)
        base = config.server.dialects
        # A mount names only the dialects that differ. A listener's choice goes before a mount's.
        mounts: dict[str, _Mounted] = {"": (base, None)} | {
            mount.prefix.rstrip("/"): (base | mount.dialects, mount.endpoint) for mount in config.server.mounts
        }
        self._default = self._table(mounts)
        self._by_port = {
            listener.port: self._table(
                {
                    prefix: (dialects | listener.dialects, listener.endpoint or endpoint)
                    for prefix, (dialects, endpoint) in mounts.items()
                }
            )
            for listener in config.server.listeners
        }
        self._paths = _paths(self._default)
        self._paths_by_port = {port: _paths(table) for port, table in self._by_port.items()}

    def handler(self, service: Service) -> ASGIRouteHandler:
        """The ASGI handler of every path that no Litestar route has."""

        @asgi("/", is_mount=True, copy_scope=False)
        async def handle(scope: HTTPScope, receive: Receive, send: Send) -> None:
            # `path` is percent-decoded already (ASGI), `raw_path` is as sent.
            path, method = scope["raw_path"].decode("latin-1"), scope["method"]
            port = scope["server"][1] if scope["server"] is not None else None  # None on a Unix socket
            found = self._paths_by_port.get(port or 0, self._paths).find(path)
            if path == "/" and method in ("GET", "HEAD"):
                await _alive(service, scope, send)
                return
            if found is None:
                await _answer_or_refuse(service, self.nearest(path, port), path, scope, send)
                return
            methods, parameters = found
            # RFC 9110, section 9.3.2: HEAD is GET without content. `Responder` leaves the content out.
            operation = methods.get("GET" if method == "HEAD" else method)
            if operation is None:
                await refuse(service, next(iter(methods.values())), not_allowed(method, methods), scope, send)
                return
            operation = operation.for_headers(scope["headers"])
            # This request counts itself, so `Service.full` compares with `>`.
            service.running += 1
            try:
                await RequestHandler(service, operation, parameters, scope, send).run(receive)
            finally:
                service.running -= 1

        return handle

    def refuser(self, service: Service) -> Callable[[GatewayError, HTTPScope, Send], Awaitable[None]]:
        """What sends an error in the form of the protocol whose paths are nearest."""

        async def send_refusal(error: GatewayError, scope: HTTPScope, send: Send) -> None:
            port = scope["server"][1] if scope["server"] is not None else None
            await refuse(service, self.nearest(scope["raw_path"].decode("latin-1"), port), error, scope, send)

        return send_refusal

    def nearest(self, path: str, port: int | None) -> Operation:
        """An operation of the protocol whose paths have the most leading segments in common with `path`."""
        table = self._by_port.get(port or 0, self._default)
        asked = path.split("/")
        # Of equally near templates the shortest wins, which says the least that was not asked for.
        best = max(table, key=lambda known: (_common(asked, known.split("/")), -len(known)))
        return next(iter(table[best].values()))

    def _table(self, mounts: Mapping[str, _Mounted]) -> Table:
        table: defaultdict[str, Methods] = defaultdict(dict)
        for prefix, (dialects, endpoint) in mounts.items():
            if unknown := set(dialects) - set(self._adapters):
                raise ConfigError(f"dialects: there is no protocol '{min(unknown)}'")
            for name, adapter in self._adapters.items():
                codec = adapter.server(self._dialect(name, dialects.get(name)))
                for route in codec.routes:
                    # Below a mount, the route `/` is the prefix itself: `find` ignores a trailing slash.
                    methods = table[prefix if prefix and route.path == "/" else prefix + route.path]
                    methods[route.method] = _joined(methods, Operation(name, route, codec, endpoint), prefix)
        return dict(table)

    def _dialect(self, protocol: str, name: str | None) -> Any:
        known = self._dialects[protocol]
        name = name or next(iter(known))
        if name not in known:
            raise ConfigError(f"dialects.{protocol}: there is no dialect '{name}'; there are {', '.join(known)}")
        return known[name]


def _joined(methods: Methods, operation: Operation, prefix: str) -> Operation:
    """The operation of a path and method; of two protocols, the unconditional one with the other as its variant.

    Raises:
        ConfigError: neither a header nor fields of their bodies separate two protocols.
    """
    method, path = operation.route.method, operation.route.path
    other = methods.get(method)
    if other is None:
        return operation
    if other.variant is not None or _is_conditional(operation) == _is_conditional(other):
        raise ConfigError(f"two protocols have the route {method} {prefix}{path}")
    first, variant = (other, operation) if _is_conditional(operation) else (operation, other)
    return replace(first, variant=variant)


def _is_conditional(operation: Operation) -> bool:
    return operation.route.header is not None or bool(operation.route.fields)


def _dialects(adapters: Mapping[str, Adapter], server: ServerSection) -> dict[str, dict[str, Any]]:
    """Each protocol's dialects by name, with the fields that the configuration sets."""
    options = server.dialect_options
    # A dialect's own option goes before the server's.
    common = {"strict": True} if server.strict else {}
    known = {name for adapter in adapters.values() for name in adapter.dialects}
    for name in options:
        if name not in known:
            raise ConfigError(f"dialect_options: there is no dialect '{name}'{nearest(name, known)}")
    return {
        protocol: {
            name: _overridden(name, with_options(dialect, common) if common else dialect, options.get(name, {}))
            for name, dialect in adapter.dialects.items()
        }
        for protocol, adapter in adapters.items()
    }


def _overridden(name: str, dialect: Any, options: Mapping[str, Any]) -> Any:
    if not options:
        return dialect
    known = option_names(dialect)
    for field in options:
        if field not in known:
            raise ConfigError(f"dialect_options.{name}: there is no field '{field}'{nearest(field, known)}")
    try:
        return with_options(dialect, options)
    except msgspec.ValidationError as error:
        raise ConfigError(f"dialect_options.{name}: {error}") from None


def _first(path: str) -> str:
    return path[1:].partition("/")[0]


def _segment(segment: str) -> str:
    parameter = _PARAMETER.fullmatch(segment)
    if parameter is None:
        return "/" + re.escape(segment)
    return f"/(?P<{parameter[1]}>{'.+' if parameter[2] else '[^/]+'})"


def _paths(table: Table) -> Paths[Methods]:
    paths: Paths[Methods] = Paths()
    for template, methods in table.items():
        paths.add(template, methods)
    return paths


def _common(asked: list[str], known: list[str]) -> int:
    count = 0
    for a, b in zip(asked, known, strict=False):
        if a != b and not b.startswith("{"):  # a parameter matches any segment
            break
        count += 1
    return count


async def _alive(service: Service, scope: HTTPScope, send: Send) -> None:
    """Answer `GET /`, which is TGI's health check, whatever other routes that path has. A browser gets the page."""
    headers = [(b"content-length", b"0"), (b"x-request-id", service.new_id().encode())]
    is_browser = any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
    if is_browser:
        headers.append((b"location", b"/ui"))
    await send({"type": "http.response.start", "status": 307 if is_browser else 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


# Paths outside of all protocols, looked up only if no protocol has the path.
_OWN: Paths[tuple[str, experiment.Handler]] = Paths()
for _path, _handler in (experiment.PATHS | keys.PATHS).items():
    _OWN.add(_path, _handler)


async def _answer_or_refuse(service: Service, nearest: Operation, path: str, scope: HTTPScope, send: Send) -> None:
    """Answer a path of no protocol: of an experiment or a key, or with a refusal."""
    found = _OWN.find(path)
    try:
        if found is None:
            raise not_found(path)
        (allowed, handler), parameters = found
        if (method := scope["method"]) != allowed and not (method == "HEAD" and allowed == "GET"):
            raise not_allowed(method, [allowed, "HEAD"] if allowed == "GET" else [allowed])
        await handler(service, parameters["name"], scope, send)
    except GatewayError as error:
        await refuse(service, nearest, error, scope, send)


def not_allowed(method: str, methods: Iterable[str]) -> MethodNotAllowed:
    """The error for a method that a path does not have; names those that it has."""
    return MethodNotAllowed(f"Method {method} is not allowed here.", allowed=tuple(sorted(methods)))


def not_found(path: str) -> RouteNotFound:
    """The error for a path that does not exist."""
    return RouteNotFound(f"There is no such path: {path}")


async def refuse(service: Service, operation: Operation, error: GatewayError, scope: HTTPScope, send: Send) -> None:
    """Send an error in the form of `operation`'s protocol, without a `RequestHandler`."""
    reply: Reply = operation.codec.error(error)
    headers = [
        (b"content-type", reply.media_type.encode()),
        (b"content-length", b"%d" % len(reply.body)),
        (b"x-request-id", service.new_id().encode()),
        *((name.encode(), value.encode()) for name, value in (*reply.headers, *status_headers(reply.status))),
    ]
    body = b"" if scope["method"] == "HEAD" else reply.body
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def routes(adapters: Mapping[str, Adapter]) -> list[tuple[str, Route]]:
    """Every protocol's routes in its default dialect, for the OpenAPI document and the greeting."""
    return [
        (name, route)
        for name, adapter in adapters.items()
        for route in adapter.server(next(iter(adapter.dialects.values()))).routes
    ]
