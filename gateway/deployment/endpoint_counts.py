"""How many requests each endpoint has answered in this worker, for listings and Triton's statistics."""

from __future__ import annotations

import time
from collections.abc import Collection

import msgspec

from schemas.catalog import Catalog, RequestCounts

_NONE = RequestCounts()


class EndpointCounts:
    """The counts of one worker, by endpoint."""

    def __init__(self) -> None:
        self._counts: dict[str, RequestCounts] = {}

    def add(self, endpoint: str, seconds: float, *, ok: bool) -> None:
        """Count an ended request."""
        old, ns = self._counts.get(endpoint, _NONE), int(seconds * 1e9)
        now = int(time.time() * 1000)
        # Replaced, not changed: a listing that holds the old struct shows one moment's numbers.
        self._counts[endpoint] = (
            RequestCounts(old.succeeded + 1, old.succeeded_ns + ns, old.failed, old.failed_ns, now)
            if ok
            else RequestCounts(old.succeeded, old.succeeded_ns, old.failed + 1, old.failed_ns + ns, now)
        )

    def keep(self, endpoints: Collection[str]) -> None:
        """Forget the others: an endpoint that is created again begins at 0."""
        self._counts = {name: counts for name, counts in self._counts.items() if name in endpoints}

    def joined(self, catalog: Catalog) -> Catalog:
        """The catalog with each endpoint's counts."""
        cards = {
            name: msgspec.structs.replace(card, counts=self._counts.get(name, _NONE))
            for name, card in catalog.cards.items()
        }
        return msgspec.structs.replace(catalog, cards=cards)
