"""The answers of one served entity that may be given again: the very bytes, to the very same request.

Strategy: a request is the same if its bytes are, in the same dialect at the same route, and it is cached only where the
model would answer the same: greedily, or with a seed. Every worker has its own answers, in memory; the least recently
used ones are forgotten first. A change of what is deployed forgets all.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from time import monotonic

import msgspec

from gateway.config import Cache
from schemas.ir import Embed, FinishReason, Generate, Request, Usage

_OVERHEAD = 1024
"""Bytes that an answer takes beside its body."""
_LARGEST_SHARE = 16
"""The largest answer takes this part of the cache at most."""


class CachedAnswer(msgspec.Struct, frozen=True):
    """An answer as its client got it; `expires` is on the clock of `time.monotonic`."""

    media_type: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    usage: Usage | None
    finish_reasons: tuple[FinishReason, ...]
    expires: float = 0.0


class AnswerCache:
    """The answers of one served entity on this worker.

    Args:
        settings: the endpoint's.
    """

    def __init__(self, settings: Cache) -> None:
        self._settings = settings
        self._answers: OrderedDict[bytes, CachedAnswer] = OrderedDict()
        self._size = 0

    @property
    def largest(self) -> int:
        """The most bytes that the body of an answer may have."""
        size: int = self._settings.max_bytes
        return size // _LARGEST_SHARE

    def name_of(self, request: Request, owner: str) -> bytes | None:
        """The name of a request's answer; None if it may have another answer each time, or does more than answer.

        Args:
            request: as it was decoded.
            owner: of the key that asks: no other key is given its answers, unless they are shared.
        """
        if not _is_repeatable(request) or request.origin is None:
            return None
        origin, owner = request.origin, "" if self._settings.shared else owner
        # The model may be named in the path. Headers of the client change what a remote of its protocol answers.
        what = (owner, origin.protocol, origin.dialect, origin.operation, request.model, origin.headers)
        return blake2b(msgspec.msgpack.encode((*what, origin.body)), digest_size=16).digest()

    def get(self, name: bytes) -> CachedAnswer | None:
        """The answer of this name; None if there is none, or it has expired."""
        found = self._answers.get(name)
        if found is None:
            return None
        if monotonic() >= found.expires:
            self._forget(name)
            return None
        self._answers.move_to_end(name)
        return found

    def put(self, name: bytes, answer: CachedAnswer) -> None:
        """Keep an answer, unless it is too large, and forget others if need be."""
        if len(answer.body) > self.largest:
            return
        if name in self._answers:
            self._forget(name)
        self._answers[name] = msgspec.structs.replace(answer, expires=monotonic() + self._settings.ttl)
        self._size += len(answer.body) + _OVERHEAD
        while self._size > self._settings.max_bytes:
            self._forget(next(iter(self._answers)))

    def _forget(self, name: bytes) -> None:
        self._size -= len(self._answers.pop(name).body) + _OVERHEAD


def _is_repeatable(request: Request) -> bool:
    if isinstance(request, Embed):
        return True
    if not isinstance(request, Generate) or request.tools or request.stored_items is not None:
        return False
    sampling = request.sampling
    return sampling.greedy or (sampling.seed is not None and not sampling.seed_drawn)
