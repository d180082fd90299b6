"""Fair order between flows: no flow waits for the whole queue of another one. Imports no torch.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996), with tokens as the unit of service as in the virtual token
counter (Sheng et al., OSDI 2024). Each request gets a virtual time to start at: the present virtual time, or where the
requests of its flow before it end. Requests start in that order, so that flows which wait get equal numbers of tokens.
The times of one flow alone grow in order of arrival. A request is overtaken only by those with an earlier start, of
which there are finitely many: every request gets its turn.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST_FLOWS = 1024
"""Flows that are kept although they have nothing left to make up for."""


@dataclass(slots=True, eq=False)
class _Share:
    """What requests of one flow and one size class have been given.

    Attributes:
        start: of the last one.
        end: of the last one, less what others did not use.
        present: how many have not ended.
    """

    start: float = 0.0
    end: float = 0.0
    present: int = 0


class FairClock:
    """Gives requests their virtual times to start at.

    Args:
        short_first: whether requests of one flow are in classes by their size, which share what the flow gets. Then a
            short one waits for no long one, and long ones still get their share.
    """

    def __init__(self, *, short_first: bool = False) -> None:
        self._short_first = short_first
        self._now = 0.0
        self._shares: dict[str, dict[int, _Share]] = {}  # by flow and class

    def start_of(self, flow: str, tokens: int) -> float:
        """The virtual time at which a new request starts.

        Args:
            flow: whose it is.
            tokens: of its prompt and its answer, at most; 1 or more.
        """
        if len(self._shares) > _MOST_FLOWS:
            self._forget()
        shares = self._shares.setdefault(flow, {})
        share = shares.setdefault(self._class_of(tokens), _Share())
        # Never before those of the same share that wait.
        share.start = max(self._now, share.end, share.start if share.present else 0.0)
        share.present += 1
        # What the flow gets is divided between its classes that have something to do.
        share.end = share.start + tokens * (1 + sum(each.end > self._now for each in shares.values() if each != share))
        return share.start

    def advance(self, start: float) -> None:
        """Note that a request with this virtual time has started."""
        self._now = max(self._now, start)

    def end(self, flow: str, tokens: int, unused: int) -> None:
        """Note that a request has ended. Its flow does not pay for what it did not use of its tokens."""
        share = self._shares[flow][self._class_of(tokens)]
        share.present -= 1
        share.end -= unused

    def _class_of(self, tokens: int) -> int:
        # Sizes up to four times as large are alike.
        return tokens.bit_length() // 2 if self._short_first else 0

    def _forget(self) -> None:
        for flow, shares in [*self._shares.items()]:
            if not any(share.present or share.end > self._now for share in shares.values()):
                del self._shares[flow]


@dataclass(slots=True, eq=False)
class Place(Generic[T]):
    """The place of a request in a queue.

    Attributes:
        item: what waits.
        flow, tokens: as for `FairClock`.
        order: the queue's order grows with it; no two are equal.
    """

    item: T
    flow: str
    tokens: int
    order: tuple[float, int]


class FairQueue(Generic[T]):
    """What waits, in fair order; in the order of arrival where there is one flow.

    Args:
        short_first: as for `FairClock`.
    """

    def __init__(self, *, short_first: bool = False) -> None:
        self._clock = FairClock(short_first=short_first)
        self._places: list[Place[T]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def first(self) -> Place[T]:
        """Who is next. There must be one."""
        return self._places[0]

    def put(self, item: T, flow: str, tokens: int) -> Place[T]:
        """Queue a request."""
        self._arrivals += 1
        place = Place(item, flow, tokens, (self._clock.start_of(flow, tokens), self._arrivals))
        insort(self._places, place, key=_order)
        return place

    def take(self, place: Place[T]) -> T:
        """Take a request out to serve it."""
        # One that is served beside the first does not make later ones of other flows wait for those before it.
        if place is self._places[0]:
            self._clock.advance(place.order[0])
        self._remove(place, unused=0)
        return place.item

    def drop(self, place: Place[T]) -> None:
        """Take a request out that is given up: its flow does not pay for it. Without effect once it was served."""
        self._remove(place, unused=place.tokens)

    def _remove(self, place: Place[T], unused: int) -> None:
        index = bisect_left(self._places, place.order, key=_order)
        if index < len(self._places) and self._places[index] is place:
            del self._places[index]
            self._clock.end(place.flow, place.tokens, unused)


def _order(place: Place[T]) -> tuple[float, int]:
    return place.order
