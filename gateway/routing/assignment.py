"""Weighted rendezvous hashing of units to arms, and which part of a request is its unit.

Pure functions: all workers decide alike, across restarts, without a store. An arm's hash depends on the endpoint, the
arm and the unit alone, so a change of weights moves the fewest units: only those that an arm gains or loses
(Schindelhauer, Schomaker: Weighted Distributed Hash Tables, 2005).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from math import log
from typing import NamedTuple

import msgspec

from backends.prompts import conversation_of
from gateway.access.keys import given_key
from schemas.ir import Generate, Request

# A power of two: `feedback_ring` stores a bucket in 9 bits, and the 16-bit hash of `bucket_of` divides evenly.
BUCKETS = 512
"""Number of groups in which units are counted."""

_SCALE = 2.0**-64  # a 64-bit hash to [0, 1)
_integer = int.from_bytes
_LONE = "surrogateescape"  # Python decodes command-line bytes that are not UTF-8 to lone surrogates (`gateway explain`)


class Unit(msgspec.Struct, frozen=True, gc=False):
    """What is assigned to an arm and keeps it.

    Attributes:
        source: the configured source that gave `value`.
        value: a user's name, a digest of a key ...
        bucket: its group, below `BUCKETS`, independent of any assignment: statistics count a group's units together.
    """

    source: str
    value: str
    bucket: int


class Rendezvous:
    """The arms of an endpoint, prepared for scores: what does not depend on the unit is computed once.

    Args:
        endpoint: keys the hash, so that experiments on different endpoints are independent.
        weights: by arm, not negative; at least one is positive.

    Raises:
        ValueError: no weight is positive.
    """

    def __init__(self, endpoint: str, weights: Mapping[str, float]) -> None:
        if not any(weight > 0 for weight in weights.values()):
            raise ValueError(f"no arm of {endpoint} has a positive weight")
        # With the negative weight, `w / -ln u` is one operation less for each arm of each request.
        self._arms = [(_keyed(endpoint, arm).copy, -float(weight)) for arm, weight in weights.items()]
        self._weighted = [(place, *arm) for place, arm in enumerate(self._arms) if arm[1] < 0]

    def scores(self, unit: str) -> list[float]:
        """Each arm's score, `w / -ln u` with u the hash of (endpoint, arm, unit) in (0, 1); 0 for a weight of 0."""
        data, found = unit.encode("utf-8", _LONE), []
        for copy, negative in self._arms:
            hasher = copy()
            hasher.update(data)
            # Half a step keeps u above 0. -ln(u) is exponential with rate 1, -ln(u) / w with rate w, and the arm with
            # the smallest wins with a chance of w over the sum of weights: the score is the reciprocal.
            found.append(negative / log((_integer(hasher.digest()) + 0.5) * _SCALE))
        return found

    def chosen(self, unit: str) -> int:
        """The place of the unit's arm: the one with the highest score."""
        # As `scores`, but for every request.
        data, chosen, highest = unit.encode("utf-8", _LONE), 0, 0.0
        for place, copy, negative in self._weighted:
            hasher = copy()
            hasher.update(data)
            score = negative / log((_integer(hasher.digest()) + 0.5) * _SCALE)
            if score > highest:
                chosen, highest = place, score
        return chosen


def assign(endpoint: str, weights: Mapping[str, float], unit: str) -> str:
    """The arm of a unit; the arguments and errors are those of `Rendezvous`, which decides for many units."""
    return list(weights)[Rendezvous(endpoint, weights).chosen(unit)]


OWN_ID = "request"
"""The source of a unit that is one request."""


class Source(NamedTuple):
    """Where a unit may come from.

    Attributes:
        name: as configured: `header:<name>` or one of `gateway.config.UNITS`.
        header: the header that has it, if one does.
        field: the request's field that has it, if one does; not every kind of request has every field.
        read: what else reads it.
    """

    name: str
    header: str | None = None
    field: str | None = None
    read: Callable[[Request, Mapping[str, str]], str | None] | None = None


def sources(names: Iterable[str]) -> tuple[Source, ...]:
    """The sources of these names."""
    return tuple(_source(name) for name in names)


def source_of(request: Request, headers: Mapping[str, str], order: Iterable[Source]) -> tuple[str, str]:
    """The first source of `order` that the request has, and the unit's value there; else the request's own id."""
    # Each request of an experiment looks at most of them, so only what is computed is a call.
    for source, header, field, read in order:
        if header is not None:
            value = headers.get(header)
        elif field is not None:
            value = getattr(request, field, None)
        else:
            assert read is not None
            value = read(request, headers)
        if value:
            return source, value
    return OWN_ID, request.id


def bucket_of(value: str) -> int:
    """The group of a unit."""
    # Not keyed by endpoint or arm: a bucket says nothing about the assignment, as the statistics require.
    return _integer(hashlib.blake2b(value.encode("utf-8", _LONE), digest_size=2).digest()) % BUCKETS


def _keyed(endpoint: str, arm: str) -> hashlib.blake2b:
    # Endpoint and arm are the hash's key; `scores` copies the state for each unit. The length keeps endpoint and arm
    # apart: ("ab", "c") and ("a", "bc") differ.
    key = hashlib.blake2b(f"{len(endpoint)}:{endpoint}{arm}".encode(), digest_size=32).digest()
    return hashlib.blake2b(key=key, digest_size=8)


def _source(name: str) -> Source:
    if name.startswith("header:"):
        return Source(name, header=name.removeprefix("header:").lower())
    if name in _READ:
        return Source(name, read=_READ[name])
    return Source(name, field="id" if name == OWN_ID else name)


def _conversation(request: Request, _: Mapping[str, str]) -> str | None:
    if not isinstance(request, Generate):
        return None
    # A stored conversation keeps its id whatever happens to its first items.
    return request.conversation.id if request.conversation is not None else conversation_of(request)


def _api_key(_: Request, headers: Mapping[str, str]) -> str | None:
    key = given_key(headers)
    # A unit may be shown, a key never.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest() if key else None


_READ = {"api_key": _api_key, "conversation": _conversation}
