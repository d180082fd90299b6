"""Weighted rendezvous hashing of units to arms, and which part of a request is its unit.

Pure functions: all workers decide alike, across restarts, without a store. An arm's hash depends on the endpoint, the
arm and the unit alone, so a change of weights moves the fewest units: only those that an arm gains or loses
(Schindelhauer, Schomaker: Weighted Distributed Hash Tables, 2005).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log
from typing import NamedTuple

from gateway.access.keys import given_key
from schemas.ir import ChatPrompt, Generate, Message, Request, TextPart

# A power of two: `feedback_ring` stores a bucket in 9 bits, and the 16-bit hash of `bucket_of` divides evenly.
BUCKETS = 512
"""Number of groups in which units are counted."""

_SCALE = 2.0**-64  # a 64-bit hash to [0, 1)


class Unit(NamedTuple):
    """What is assigned to an arm and keeps it.

    Attributes:
        source: the configured source that gave `value`.
        value: a user's name, a digest of a key ...
        bucket: its group, below `BUCKETS`, independent of any assignment: statistics count a group's units together.
    """

    source: str
    value: str
    bucket: int


def assign(endpoint: str, weights: Mapping[str, float], unit: str) -> str:
    """The arm of a unit: the one with the highest score.

    Args:
        endpoint: keys the hash, so that experiments on different endpoints are independent.
        weights: by arm, not negative; at least one is positive.
        unit: any text.

    Raises:
        ValueError: no weight is positive.
    """
    data, best, chosen = _bytes(unit), 0.0, ""
    for arm, weight in weights.items():
        if weight > 0 and (score := _score(endpoint, arm, weight, data)) > best:
            best, chosen = score, arm
    if not chosen:
        raise ValueError(f"no arm of {endpoint} has a positive weight")
    return chosen


def scores(endpoint: str, weights: Mapping[str, float], unit: str) -> dict[str, float]:
    """Each arm's score, `w / -ln u` with u the hash of (endpoint, arm, unit) in (0, 1); 0 for a weight of 0."""
    data = _bytes(unit)
    return {arm: _score(endpoint, arm, weight, data) if weight > 0 else 0.0 for arm, weight in weights.items()}


def unit_of(request: Request, headers: Mapping[str, str], order: Sequence[str]) -> Unit:
    """The unit from the first source of `order` that the request has; else its own id."""
    for source in order:
        if value := _value(request, headers, source):
            return Unit(source, value, bucket_of(value))
    return Unit("request", request.id, bucket_of(request.id))


def bucket_of(value: str) -> int:
    """The group of a unit."""
    # Not keyed by endpoint or arm: a bucket says nothing about the assignment, as the statistics require.
    return int.from_bytes(hashlib.blake2b(value.encode("utf-8", "surrogateescape"), digest_size=2).digest()) % BUCKETS


def _score(endpoint: str, arm: str, weight: float, unit: bytes) -> float:
    hasher = _keyed(endpoint, arm).copy()
    hasher.update(unit)
    # Half a step keeps u above 0. -ln(u) is exponential with rate 1, -ln(u) / w with rate w, and the arm with the
    # smallest wins with a chance of w over the sum of weights: the score is the reciprocal.
    return weight / -log((int.from_bytes(hasher.digest()) + 0.5) * _SCALE)


def _bytes(unit: str) -> bytes:
    # `surrogateescape`: Python decodes command-line bytes that are not UTF-8 to lone surrogates (`gateway explain`).
    return unit.encode("utf-8", "surrogateescape")


@lru_cache(maxsize=4096)
def _keyed(endpoint: str, arm: str) -> hashlib.blake2b:
    # Endpoint and arm are the hash's key, prepared once per arm; `scores` copies the state for each unit. The length
    # keeps endpoint and arm apart: ("ab", "c") and ("a", "bc") differ.
    key = hashlib.blake2b(f"{len(endpoint)}:{endpoint}{arm}".encode(), digest_size=32).digest()
    return hashlib.blake2b(key=key, digest_size=8)


def _value(request: Request, headers: Mapping[str, str], source: str) -> str | None:
    if source.startswith("header:"):
        return headers.get(source.removeprefix("header:").lower())
    if source == "request":
        return request.id
    if source == "api_key":
        key = given_key(headers)
        # A unit may be shown, a key never.
        return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest() if key else None
    if source == "conversation":
        return _conversation(request) if isinstance(request, Generate) else None
    # The others are fields, which not every kind of request has.
    value: str | None = getattr(request, source, None)
    return value


def _conversation(request: Generate) -> str | None:
    """A digest of the messages up to the user's first one, which all turns of a conversation share."""
    prompt = request.prompts[0]  # several prompts in one request share its unit
    if not isinstance(prompt, ChatPrompt):
        return None
    hasher = hashlib.blake2b(digest_size=16)
    for message in prompt.messages:
        hasher.update(f"{message.role}\0{_text(message)}\0".encode("utf-8", "surrogatepass"))
        # Later turns differ, and the answers of an arm are among them: they must not change the assignment.
        if message.role == "user":
            break
    return hasher.hexdigest()


def _text(message: Message) -> str:
    content = message.content or ""
    if isinstance(content, str):
        return content
    return "\0".join(part.text for part in content if isinstance(part, TextPart))
