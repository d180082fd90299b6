"""Routes of adapters, as Litestar handlers: one raw ASGI handler a path, with its own table of methods.

Raw, because the adapters own every byte: Litestar routes, and neither reads bodies nor writes answers here. What no
route matches is answered by the protocol whose paths lie nearest, in its own words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar.handlers import ASGIRouteHandler, asgi

from adapters.base import Adapter, Reply, Route
from gateway.config import Config, ConfigError
from gateway.exchange import Exchange, Operation
from gateway.service import Service
from schemas.errors import GatewayError, MethodNotAllowed, RouteNotFound

Methods = dict[str, Operation]
Table = dict[str, Methods]
"""Path template -> method -> operation."""

_PLAIN_PARAMETER = re.compile(r"{(\w+)}")


class Mounts:
    """Every path of every mount, per listener.

    Args:
        adapters: the protocols, by name.
        config: says which dialects; overrides single fields of them.

    Raises:
        ConfigError: a dialect or one of its fields does not exist, or two routes have the same path and method.
    """

    def __init__(self, adapters: Mapping[str, Adapter], config: Config) -> None:
        self._adapters = adapters
        self._options = config.server.dialect_options
        base = config.server.dialects
        prefixes = {"": base} | {mount.prefix.rstrip("/"): base | mount.dialects for mount in config.server.mounts}
        self.default = self._tables(prefixes)
        self.by_port: dict[int, Table] = {
            listener.port: self._tables({prefix: dialects | listener.dialects for prefix, dialects in prefixes.items()})
            for listener in config.server.listeners
        }

    def handlers(self, service: Service) -> list[ASGIRouteHandler]:
        """One handler for each path."""
        return [
            asgi(_PLAIN_PARAMETER.sub(r"{\1:str}", path), copy_scope=False)(
                _handler(service, methods, {port: table[path] for port, table in self.by_port.items()})
            )
            for path, methods in self.default.items()
        ]

    def nearest(self, path: str, port: int | None) -> Operation:
        """Some operation of the protocol whose paths have the most leading segments in common with `path`."""
        table = self.by_port.get(port or 0, self.default)
        asked = path.split("/")

        def common(known: str) -> int:
            segments = known.split("/")
            return next(
                (
                    index
                    for index, (a, b) in enumerate(zip(asked, segments, strict=False))
                    if a != b and not b.startswith("{")
                ),
                min(len(asked), len(segments)),
            )

        best = max(table, key=lambda known: (common(known), -len(known)))
        return next(iter(table[best].values()))

    def _tables(self, prefixes: Mapping[str, Mapping[str, str]]) -> Table:
        table: defaultdict[str, Methods] = defaultdict(dict)
        for prefix, dialects in prefixes.items():
            if unknown := set(dialects) - set(self._adapters):
                raise ConfigError(f"dialects: there is no protocol '{min(unknown)}'")
            for name, adapter in self._adapters.items():
                face = adapter.server(self._dialect(adapter, dialects.get(name)))
                for route in face.routes:
                    methods = table[prefix + route.path if route.path != "/" or not prefix else prefix]
                    if route.method in methods:
                        raise ConfigError(f"two protocols want {route.method} {prefix}{route.path}")
                    methods[route.method] = Operation(name, route, face)
        return dict(table)

    def _dialect(self, adapter: Adapter, name: str | None) -> Any:
        name = name or next(iter(adapter.dialects))
        if name not in adapter.dialects:
            known = ", ".join(adapter.dialects)
            raise ConfigError(f"dialects.{adapter.name}: there is no dialect '{name}'; there are {known}")
        options = self._options.get(name, {})
        if not options:
            return adapter.dialects[name]
        fields = msgspec.to_builtins(adapter.dialects[name]) | options
        try:
            return msgspec.convert(fields, type(adapter.dialects[name]))
        except msgspec.ValidationError as error:
            raise ConfigError(f"dialect_options.{name}: {error}") from None


def _handler(service: Service, methods: Methods, by_port: Mapping[int, Methods]) -> Any:
    async def handle(scope: Any, receive: Any, send: Any) -> None:
        found = by_port.get(scope["server"][1], methods) if by_port else methods
        method = scope["method"]
        operation = found.get("GET" if method == "HEAD" else method)
        if operation is None and method in ("GET", "HEAD") and scope["path"] == "/":
            await _alive(send)  # a health check to TGI's users
            return
        if operation is None:
            await refuse(service, next(iter(found.values())), not_allowed(method, found), scope, send)
            return
        service.running += 1
        try:
            await Exchange(service, operation, scope, send).run(receive)
        finally:
            service.running -= 1

    return handle


async def _alive(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def not_allowed(method: str, methods: Methods) -> MethodNotAllowed:
    """The refusal of a method, naming those that would do."""
    return MethodNotAllowed(f"Method {method} is not allowed here.", allowed=tuple(sorted(methods)))


def not_found(path: str) -> RouteNotFound:
    """The refusal of a path."""
    return RouteNotFound(f"There is no such path: {path}")


async def refuse(service: Service, operation: Operation, error: GatewayError, scope: Any, send: Any) -> None:
    """Answer an error where there is nothing to run, in the words of `operation`'s protocol."""
    reply: Reply = operation.face.error(error)
    headers = [
        (b"content-type", reply.media_type.encode()),
        (b"content-length", b"%d" % len(reply.body)),
        (b"x-request-id", service.new_id().encode()),
        *((name.encode(), value.encode()) for name, value in reply.headers),
    ]
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    body = b"" if scope["method"] == "HEAD" else reply.body
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def routes(adapters: Mapping[str, Adapter]) -> list[tuple[str, Route]]:
    """Every protocol's routes in its default dialect, for documents."""
    return [
        (name, route)
        for name, adapter in adapters.items()
        for route in adapter.server(next(iter(adapter.dialects.values()))).routes
    ]
