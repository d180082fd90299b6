"""Which of several equal servers gets a request: those of one model, which all would answer alike.

Pure: no I/O and no clock. Which model answers is never decided here, or experiments would be biased: a `Candidate` is
an engine or a server behind one served entity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

import msgspec

AffinityPolicy = Literal["prefix", "conversation", "least"]
"""`prefix`: where most of the prompt is cached, unless too much runs there; without any hit as `conversation`.
`conversation`: where the conversation's digest says, unless too much runs there. `least`: where least runs, as far as
is known (`_least`).
"""

_HITS_WEIGHT, _LOAD_WEIGHT, _CACHE_WEIGHT = 3.0, 2.0, 2.0
"""Of the share of the prompt that is cached, of the load against the mean, and of the share of the cache in use. The
weights are those of llm-d's scheduler.
"""
_RENEWED = 0.5
"""Requests that others are taken to send until they report again, for each that they have reported."""
_GOLDEN = (5**0.5 - 1) / 2
_MASK = 2**64 - 1
_BOUND, _SPARE = 1.5, 4
"""A candidate takes at most `_BOUND` times the mean load and `_SPARE` requests more (bounded loads, Mirrokni et al.,
arXiv 1608.01350): a prompt that everybody begins with must not make one server slow.
"""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A server that may get a request.

    Attributes:
        name: equal in all processes that choose.
        load: requests that it has now.
        hits: leading blocks of the prompt that it has cached.
        cache_use: share of its cache that running requests hold, 0 to 1.
        reported: those of `load` that are other processes', as of the candidate's latest report.
    """

    name: str
    load: int
    hits: int = 0
    cache_use: float = 0.0
    reported: int = 0


def choose(
    policy: AffinityPolicy, candidates: Sequence[Candidate], blocks: int, conversation: str | None, draw: float
) -> int:
    """The index of the candidate that gets a request.

    Args:
        policy: how to choose.
        candidates: at least one.
        blocks: of the prompt.
        conversation: what all turns of a conversation share; None: the request has none.
        draw: a number from 0 to 1 without 1, for what is decided by load alone: the next one of `draws`.
    """
    if policy == "least":
        return _least(candidates, draw)
    loads = [each.load for each in candidates]
    mean = sum(loads) / len(loads)
    bound = _BOUND * mean + _SPARE
    allowed = [place for place, load in enumerate(loads) if load <= bound]
    if policy == "prefix" and blocks and any(candidates[place].hits for place in allowed):
        of_hit, of_load = _HITS_WEIGHT / blocks, _LOAD_WEIGHT / (mean + _SPARE)
        scores = [
            of_hit * each.hits - of_load * each.load - _CACHE_WEIGHT * each.cache_use
            for each in map(candidates.__getitem__, allowed)
        ]
        best = max(scores)
        allowed = [place for place, score in zip(allowed, scores, strict=True) if score == best]
    elif conversation is None:
        return _least(candidates, draw)
    if conversation is None or len(allowed) == 1:
        return allowed[0]
    chosen = _rendezvous(_number(conversation), [candidates[place].name for place in allowed])
    return allowed[chosen]


def _least(candidates: Sequence[Candidate], draw: float) -> int:
    """The index of a candidate among the least loaded ones, drawn by how much less each of them has.

    Others choose from the same reports. If all took the least loaded one, it would get all of their requests until the
    next report, far more than the difference (Mitzenmacher, How useful is old information, 2000). So each takes the
    requests that are on their way to fill up the least loaded candidates to one level, as water would, and a candidate
    with the chance of its share of that water (Dahlin, Interpreting stale load information, 1999). Where nobody else
    has any, the only request on its way is this one, and goes to the least loaded candidate.
    """
    order = sorted(range(len(candidates)), key=lambda place: candidates[place].load)
    water = 1 + _RENEWED * sum(each.reported for each in candidates)
    below = level = 0.0
    for count, place in enumerate(order, 1):
        if count > 1 and level <= candidates[place].load:
            order = order[: count - 1]
            break
        below += candidates[place].load
        level = (water + below) / count
    left = draw * water
    for place in sorted(order):
        left -= level - candidates[place].load
        if left < 0:
            break
    return place


def draws(number: float) -> Iterator[float]:
    """Numbers from 0 to 1 without 1, from `number` on; any few that follow each other are spread evenly.

    So a process spreads its requests more evenly than by chance: among equal candidates it takes turns. Each process
    begins elsewhere.
    """
    while True:
        yield number
        number = (number + _GOLDEN) % 1


def destination(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    """The index of the first one of `wanted` that is a name; None: none is.

    Args:
        names: `HOST:PORT` of the servers that are well.
        wanted: what an endpoint picker has chosen, the best one first.
    """
    return next((names.index(each) for each in wanted if each in names), None)


class PrefixIndex:
    """Which blocks each candidate has cached, as the candidates report it.

    A candidate is a bit: one look-up answers for all. An entry takes some 150 bytes.
    """

    def __init__(self) -> None:
        self._holders: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def store(self, candidate: int, keys: Sequence[bytes]) -> None:
        """Note that the candidate with this number has cached blocks."""
        bit, holders = 1 << candidate, self._holders
        for key in keys:
            holders[key] = holders.get(key, 0) | bit

    def remove(self, candidate: int, keys: Sequence[bytes]) -> None:
        """Note that the candidate has these blocks no more."""
        bit, holders = 1 << candidate, self._holders
        for key in keys:
            left = holders.get(key, 0) & ~bit
            if left:
                holders[key] = left
            else:
                holders.pop(key, None)

    def clear(self, candidate: int) -> None:
        """Note that the candidate has no blocks."""
        self.remove(candidate, [key for key, held in self._holders.items() if held >> candidate & 1])

    def hits(self, keys: Sequence[bytes]) -> dict[int, int]:
        """The length of the leading run of `keys` that each candidate has, by its number; without those that have
        none.
        """
        found: dict[int, int] = {}
        holders = self._holders
        alive, length = -1, 0
        for length, key in enumerate(keys):
            held = holders.get(key, 0) & alive
            if held != alive:
                if length:
                    _note(found, alive & ~held, length)
                alive = held
                if not alive:
                    return found
        if keys:
            _note(found, alive, length + 1)
        return found


def _note(found: dict[int, int], bits: int, length: int) -> None:
    while bits:
        lowest = bits & -bits
        found[lowest.bit_length() - 1] = length
        bits ^= lowest


def _rendezvous(conversation: int, names: Sequence[str]) -> int:
    """The index of the name with the greatest weight for a conversation: it keeps it while others come and go."""
    weights = [_mixed(conversation ^ _name_number(name)) for name in names]
    return weights.index(max(weights))


def _mixed(number: int) -> int:
    # The finalizer of MurmurHash3: one digest for each name would take most of the time of a decision.
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & _MASK
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return number ^ number >> 33


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


_name_number = lru_cache(maxsize=4096)(_number)
