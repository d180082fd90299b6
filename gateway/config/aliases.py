"""Aliases of endpoints: other names, or patterns of names, under which clients may ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import combinations

from gateway.config.endpoint import Endpoint
from schemas.catalog import Aliases


def aliases_of(endpoints: Mapping[str, Endpoint]) -> Aliases:
    """The aliases of all endpoints, the patterns in the order in which they are tried."""
    pairs = [(alias, name) for name, endpoint in endpoints.items() for alias in endpoint.aliases]
    patterns = sorted((pair for pair in pairs if _is_pattern(pair[0])), key=lambda pair: -_literals(pair[0]))
    return Aliases({alias: name for alias, name in pairs if not _is_pattern(alias)}, tuple(patterns))


def wrong_aliases(endpoints: Mapping[str, Endpoint]) -> tuple[str, str] | None:
    """The first endpoint whose aliases clash with another's name or aliases, and a text to append to its name."""
    for name, endpoint in endpoints.items():
        for alias in endpoint.aliases:
            if alias in endpoints:
                return name, f": the alias '{alias}' is the name of an endpoint"
    for (one, first), (other, second) in combinations(endpoints.items(), 2):
        for alias in second.aliases:
            if rival := next((known for known in first.aliases if _clash(known, alias)), None):
                return other, f": the alias '{alias}' clashes with '{rival}' of endpoints.{one}"
    return None


def _clash(one: str, other: str) -> bool:
    """Whether a name exists that two aliases match and neither takes precedence."""
    if not _is_pattern(one) or not _is_pattern(other):
        return one == other  # an exact alias goes before a pattern
    return _literals(one) == _literals(other) and _intersect(one, other)


def _is_pattern(alias: str) -> bool:
    return "*" in alias or "?" in alias


def _literals(pattern: str) -> int:
    """The number of characters that are not wildcards: of several matching patterns, the one with the most is meant."""
    return len(pattern) - pattern.count("*") - pattern.count("?")


@cache
def _intersect(one: str, other: str) -> bool:
    """Whether some name matches both patterns."""
    if not one or not other:
        return not (one + other).strip("*")
    if one[0] == "*":
        return _intersect(one[1:], other) or _intersect(one, other[1:])
    if other[0] == "*":
        return _intersect(other, one)
    return (one[0] == other[0] or "?" in (one[0], other[0])) and _intersect(one[1:], other[1:])
