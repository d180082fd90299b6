"""The answers of one served entity that may be given again: the very bytes, to the very same request.

Strategy: a request is the same if its bytes are, in the same dialect at the same route, and it is cached only where the
model would answer the same: greedily, or with a seed. Where answers are kept is a matter of its own (`AnswerStore`). In
memory, every worker has its own; the least recently used ones are forgotten first, and a change of what is deployed
forgets all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from time import monotonic
from typing import Protocol

import msgspec

from gateway.config import Cache, Endpoint, ServedEntity
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


class AnswerStore(Protocol):
    """Keeps answers by name for some time. What cannot be kept or found is no error: the model is asked."""

    async def get(self, name: bytes) -> CachedAnswer | None:
        """The answer of this name; None if there is none, or it has expired."""
        ...

    async def put(self, name: bytes, answer: CachedAnswer) -> None:
        """Keep an answer."""
        ...


StoreOf = Callable[[str, Endpoint, ServedEntity], AnswerStore | None]
"""Where the answers of a served entity of an endpoint, by its name, are kept; None: in the memory of this worker."""


def in_memory(_name: str, _endpoint: Endpoint, _entity: ServedEntity) -> None:
    """Where answers are kept without a state server; see `StoreOf`."""


class AnswerCache:
    """Which answers of a served entity are kept, by which names.

    Attributes:
        store: where.
        largest: the most bytes that the body of an answer may have.

    Args:
        settings: the endpoint's.
        store: None: the memory of this worker.
    """

    def __init__(self, settings: Cache, store: AnswerStore | None = None) -> None:
        self._shared = settings.shared
        self.store: AnswerStore = store or AnswerMemory(settings)
        self.largest = settings.max_bytes // _LARGEST_SHARE

    def name_of(self, request: Request, owner: str) -> bytes | None:
        """The name of a request's answer; None if it may have another answer each time, or does more than answer.

        Args:
            request: as it was decoded.
            owner: of the key that asks: no other key is given its answers, unless they are shared.
        """
        if not _is_repeatable(request) or request.origin is None:
            return None
        origin, owner = request.origin, "" if self._shared else owner
        # The model may be named in the path. Headers of the client change what a remote of its protocol answers.
        what = (owner, origin.protocol, origin.dialect, origin.operation, request.model, origin.headers)
        return blake2b(msgspec.msgpack.encode((*what, origin.body)), digest_size=16).digest()


class AnswerMemory:
    """Answers in the memory of one worker.

    Args:
        settings: for how long, and how many bytes of them.
    """

    def __init__(self, settings: Cache) -> None:
        self._settings = settings
        self._answers: OrderedDict[bytes, CachedAnswer] = OrderedDict()
        self._size = 0

    async def get(self, name: bytes) -> CachedAnswer | None:
        """The answer of this name; None if there is none, or it has expired."""
        found = self._answers.get(name)
        if found is None:
            return None
        if monotonic() >= found.expires:
            self._forget(name)
            return None
        self._answers.move_to_end(name)
        return found

    async def put(self, name: bytes, answer: CachedAnswer) -> None:
        """Keep an answer, and forget others if need be."""
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
    if not isinstance(request, Generate) or request.tools or request.unread or request.stored_items is not None:
        return False
    sampling = request.sampling
    return sampling.greedy or (sampling.seed is not None and not sampling.seed_drawn)
