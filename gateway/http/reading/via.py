"""Loops of gateways: the header `via` has a line for each one that a request has passed (RFC 9110, section 7.6.3)."""

from __future__ import annotations

from collections.abc import Iterable

from backends.transport.url import VIA
from schemas.errors import InvalidRequest

MOST_GATEWAYS = 5
"""How many gateways a request may have passed. Where they ask each other on purpose, these are one or two."""


def gateways_passed(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """How many gateways like this one a request has passed, by its headers. Other proxies do not count."""
    ours = VIA[0][1].encode()
    return sum(value.count(ours) for name, value in headers if name == b"via")


def check_passed(passed: int) -> None:
    """Pass a request that has not come through too many gateways.

    Raises:
        schemas.errors.InvalidRequest: it has, so that they must ask each other in a circle.
    """
    if passed > MOST_GATEWAYS:
        raise InvalidRequest(
            f"The request has passed {passed} gateways: the backends of some of them lead back to themselves.",
            code="loop_detected",
        )
