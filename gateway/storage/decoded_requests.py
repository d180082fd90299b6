"""Requests that were decoded before: one that is answered from a cache again and again is decoded once.

Strategy: a request is known by all that a codec may look at: its bytes, its route, its path and query, and every header
but those that no protocol reads. What is kept is small, since only requests that a cache has answered are.
"""

from __future__ import annotations

from collections import OrderedDict

from adapters.base import Call
from schemas.catalog import Catalog
from schemas.ir import Request, Tokenize

_MOST_BYTES = 16 << 20
"""Of the bodies of all that are kept; decoded, a request takes about twice as much."""
_OVERHEAD = 4096
"""Bytes that a request takes beside its body."""
_UNREAD = frozenset(
    (
        "accept",
        "accept-encoding",
        "accept-language",
        "api-key",
        "authorization",
        "cache-control",
        "connection",
        "content-length",
        "host",
        "traceparent",
        "tracestate",
        "user-agent",
        "x-api-key",
        "x-goog-api-key",
        "x-request-id",
    )
)
"""Headers that no codec reads. A header that is missing here costs a decoding, no wrong answer."""

Name = tuple[object, ...]
"""All of a request that its decoding depends on, but for the catalog."""


def name_of(operation: object, call: Call, body: bytes) -> Name:
    """The name of a request; `operation` is what was asked, and lives as long as the application."""
    headers = tuple([item for item in call.headers.items() if item[0] not in _UNREAD])
    return id(operation), body, headers, tuple(call.path.items()), tuple(call.query.items())


class DecodedRequests:
    """The requests of one worker; the least recently used ones are forgotten first."""

    def __init__(self) -> None:
        self._requests: OrderedDict[Name, tuple[Request, int]] = OrderedDict()
        self._catalog: Catalog | None = None
        self._size = 0

    def get(self, name: Name, catalog: Catalog) -> Request | None:
        """The request of this name, with the id of an earlier one; None if it is not known.

        Args:
            name: of the request.
            catalog: by which it is to be decoded; what was decoded by another one is forgotten.
        """
        if catalog is not self._catalog:
            self._requests.clear()
            self._catalog, self._size = catalog, 0
            return None
        found = self._requests.get(name)
        if found is None:
            return None
        self._requests.move_to_end(name)
        return found[0]

    def put(self, name: Name, request: Request) -> None:
        """Keep a request that `get` did not know, and forget others if need be."""
        if name in self._requests or isinstance(request, Tokenize) or request.origin is None:
            return
        size = len(request.origin.body) + _OVERHEAD
        if size > _MOST_BYTES // 16:
            return
        self._requests[name] = request, size
        self._size += size
        while self._size > _MOST_BYTES:
            _, (_, freed) = self._requests.popitem(last=False)
            self._size -= freed
