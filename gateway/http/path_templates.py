"""Path templates, and which of them a path matches.

Not Litestar's, for three reasons: its raw ASGI handlers cannot have path parameters (2.25 raises KeyError); its trie
does not backtrack (`/serving-endpoints/{name}/invocations` is not found for an endpoint called `chat` where another
route begins with `/serving-endpoints/chat`); and it matches after percent-decoding, so a model's name could not hold a
slash.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar
from urllib.parse import unquote

T = TypeVar("T")
Found = tuple[T, dict[str, str]]

_PARAMETER = re.compile(r"{(\w+)(:path)?}")


class Paths(Generic[T]):
    """Values by path template; `{name}` matches one segment, `{name:path}` the rest. A trailing slash is ignored."""

    def __init__(self) -> None:
        self._plain: dict[str, T] = {}
        self._patterns: dict[str, list[tuple[re.Pattern[str], T]]] = {}

    def add(self, template: str, value: T) -> None:
        """Map `template` to `value`."""
        if "{" not in template:
            self._plain[template] = value
            return
        pattern = "".join(_segment(segment) for segment in template[1:].split("/"))
        self._patterns.setdefault(_first(template), []).append((re.compile(pattern), value))

    def find(self, path: str) -> Found[T] | None:
        """The value and the parameters of the first template that matches `path`, which is percent-encoded."""
        plain = self._plain.get(path)
        if plain is not None:
            return plain, {}
        path = path.rstrip("/") or "/"
        for pattern, value in self._patterns.get(_first(path), ()):
            if match := pattern.fullmatch(path):
                return value, {name: unquote(part) for name, part in match.groupdict().items()}
        plain = self._plain.get(path)
        return None if plain is None else (plain, {})


def _first(path: str) -> str:
    return path[1:].partition("/")[0]


def _segment(segment: str) -> str:
    parameter = _PARAMETER.fullmatch(segment)
    if parameter is None:
        return "/" + re.escape(segment)
    return f"/(?P<{parameter[1]}>{'.+' if parameter[2] else '[^/]+'})"
