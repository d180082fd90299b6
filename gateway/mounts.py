"""The routes of all protocols, as the mounts and listeners of a configuration have them.

Without Litestar, whose import takes a third of a second: whoever checks a configuration needs none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import msgspec

from adapters.base import Adapter, Route, ServerCodec
from adapters.body import UNREADABLE
from adapters.dialect import option_names, with_options
from gateway.config import Config, ConfigError, ServerSection, nearest

T = TypeVar("T")
Found = tuple[T, dict[str, str]]
Methods = dict[str, "Operation"]
Table = dict[str, Methods]
"""Path template -> method -> operation."""
_Mounted = tuple[dict[str, str], str | None]
"""The dialects of a mount by protocol, and the endpoint that answers where no model is named."""

_PARAMETER = re.compile(r"{(\w+)(:path)?}")  # the template syntax of `adapters.base.Route.path`


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """A route as mounted: its protocol, and the codec that reads and writes it.

    `endpoint` answers requests that name no model; None: the server's default. `variants`: other operations at the same
    path, for requests with the header of their route, or with one of their route's `fields` in their bodies.
    """

    protocol: str
    route: Route
    codec: ServerCodec
    endpoint: str | None = None
    variants: tuple[Operation, ...] = ()

    def for_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> Operation:
        """The operation for a request with these headers: this one, or a variant."""
        if not self.variants:
            return self
        given = {name for name, _ in headers}
        return next((each for each in self.variants if (each.route.header or "").encode() in given), self)

    def for_body(self, body: bytes) -> Operation:
        """The operation that a body is for. A body that cannot be read is left to this one to refuse."""
        if not any(each.route.fields for each in self.variants):
            return self
        try:
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except UNREADABLE:
            return self
        return next((each for each in self.variants if not each.route.fields.isdisjoint(fields)), self)


class Paths(Generic[T]):
    """Values by path template; `{name}` matches one segment, `{name:path}` the rest. A trailing slash is ignored.

    Not Litestar's, for three reasons: its raw ASGI handlers cannot have path parameters (2.25 raises KeyError); its
    trie does not backtrack (`/serving-endpoints/{name}/invocations` is not found for an endpoint called `chat` where
    another route begins with `/serving-endpoints/chat`); and it matches after percent-decoding, so a model's name could
    not hold a slash.
    """

    def __init__(self) -> None:
        self._plain: dict[str, T] = {}
        self._templates: dict[str, list[tuple[str, T]]] = {}
        self._ends: set[tuple[str, str]] = set()
        # First and last segment -> the templates that may match. Compiled at a group's first request: all of them would
        # take 0.03 s of each start.
        self._patterns: dict[tuple[str, str], list[tuple[re.Pattern[str], T]]] = {}

    def add(self, template: str, value: T) -> None:
        """Map `template` to `value`."""
        if "{" not in template:
            self._plain[template] = value
            return
        # Templates are grouped by their first segment and their last, so that a lookup tries a few of them and not all.
        # Those that end with the rest of a path come last: they match what more exact ones do.
        first = _first(template)
        self._ends.add((first, _last(template)))
        group = self._templates.setdefault(first, [])
        group.insert(len(group) if template.endswith(":path}") else 0, (template, value))

    def find(self, path: str) -> Found[T] | None:
        """The value and the parameters of the first template that matches `path`, which is percent-encoded."""
        # Most requests have a fixed path: one dictionary lookup, no regular expression.
        plain = self._plain.get(path)
        if plain is not None:
            return plain, {}
        path = path.rstrip("/") or "/"
        first, last = _first(path), _last(path)
        group = self._patterns.get((first, last))
        for pattern, value in self._compiled(first, last) if group is None else group:
            if match := pattern.fullmatch(path):
                # Unquoted after the match: `%2F` in a model's name must not split its segment.
                return value, {name: unquote(part) for name, part in match.groupdict().items()}
        plain = self._plain.get(path)
        return None if plain is None else (plain, {})

    def _compiled(self, first: str, last: str) -> list[tuple[re.Pattern[str], T]]:
        """The templates for paths with these segments at their ends, as patterns, which are kept."""
        if first not in self._templates:
            return []  # and not kept: any client could add to them
        if (first, last) not in self._ends:
            last = "{"  # a parameter's value
        group = self._patterns.get((first, last))
        if group is None:
            made = [(_last(template), template, value) for template, value in self._templates[first]]
            group = [(_pattern(template), value) for end, template, value in made if end == last or "{" in end]
            self._patterns[first, last] = group
        return group


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

    def find(self, path: str, port: int | None) -> Found[Methods] | None:
        """The operations of a path by method, and its parameters; `path` is percent-encoded."""
        return self._paths_by_port.get(port or 0, self._paths).find(path)

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
                codec = adapter.server(_chosen(name, self._dialects[name], dialects.get(name)))
                for route in codec.routes:
                    # Below a mount, the route `/` is the prefix itself: `find` ignores a trailing slash.
                    methods = table[prefix if prefix and route.path == "/" else prefix + route.path]
                    methods[route.method] = _joined(methods, Operation(name, route, codec, endpoint), prefix)
        return dict(table)


def _joined(methods: Methods, operation: Operation, prefix: str) -> Operation:
    """The operation of a path and method; of several protocols, the unconditional one with the others as its variants.

    Raises:
        ConfigError: neither a header nor fields of their bodies separate two protocols.
    """
    method, path = operation.route.method, operation.route.path
    other = methods.get(method)
    if other is None:
        return operation
    first, variant = (other, operation) if _conditions(operation) else (operation, other)
    known = [_conditions(first), *map(_conditions, first.variants)]
    # Of the first two operations both may have conditions, until the one without comes.
    if any(not known_of.isdisjoint(_conditions(variant)) for known_of in known) or not _conditions(variant):
        raise ConfigError(f"two protocols have the route {method} {prefix}{path}")
    return replace(first, variants=(*first.variants, replace(variant, variants=()), *variant.variants))


def _conditions(operation: Operation) -> frozenset[str]:
    """The header or the fields that tell the operation's requests from others at its path."""
    header = operation.route.header
    return operation.route.fields | ({header} if header is not None else set())


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


def rpc_operations(adapters: Mapping[str, Adapter], config: Config) -> dict[str, Operation]:
    """The methods of the protocols that are spoken over gRPC, by path.

    Raises:
        ConfigError: as of `Mounts`.
    """
    dialects, chosen = _dialects(adapters, config.server), config.server.dialects
    found: dict[str, Operation] = {}
    for name, adapter in adapters.items():
        if adapter.rpc is not None:
            codec = adapter.rpc(_chosen(name, dialects[name], chosen.get(name)))
            found |= {route.path: Operation(f"{name}-grpc", route, codec) for route in codec.routes}
    return found


def _chosen(protocol: str, known: Mapping[str, Any], name: str | None) -> Any:
    """The dialect of a protocol that has this name; None: its first."""
    name = name or next(iter(known))
    if name not in known:
        raise ConfigError(f"dialects.{protocol}: there is no dialect '{name}'; there are {', '.join(known)}")
    return known[name]


def _first(path: str) -> str:
    return path[1:].partition("/")[0]


def _last(path: str) -> str:
    return path[path.rfind("/") + 1 :]


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile("".join(_segment(segment) for segment in template[1:].split("/")))


def _segment(segment: str) -> str:
    parameter = _PARAMETER.match(segment)
    if parameter is None:
        return "/" + re.escape(segment)
    # What follows a parameter is a verb, as in Google's APIs (`{model}:generateContent`).
    return f"/(?P<{parameter[1]}>{'.+' if parameter[2] else '[^/]+'}){re.escape(segment[parameter.end() :])}"


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


def routes(adapters: Mapping[str, Adapter]) -> list[tuple[str, Route]]:
    """Every protocol's routes in its default dialect, for the OpenAPI document and the greeting."""
    return [
        (name, route)
        for name, adapter in adapters.items()
        for route in adapter.server(next(iter(adapter.dialects.values()))).routes
    ]
