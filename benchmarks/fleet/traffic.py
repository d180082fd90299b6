"""What clients ask: conversations over system prompts, some of which nearly all of them have.

Lengths are log-normal, with the medians and means that are published for Azure's conversations of 2023 (Splitwise,
arXiv 2311.18677: answers of 129 tokens in the median, 211 in the mean); turns are geometric, system prompts by Zipf's
law. These are assumptions, not a recorded trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, pi, sin
from random import Random
from struct import pack
from typing import NamedTuple

from benchmarks.fleet.replica import Job

DAY = 86_400.0


class Lengths(NamedTuple):
    """Tokens. Of questions and answers: the median and the mean.

    Attributes:
        most: of a question, and of an answer.
        context: that a conversation with one more turn must fit; 0: any.
    """

    systems: tuple[int, int] = (256, 4096)
    question: tuple[int, int] = (40, 90)
    answer: tuple[int, int] = (129, 211)
    most: int = 2048
    context: int = 0


class Load(NamedTuple):
    """How many requests come, and when. Rates are requests per second.

    Attributes:
        daily: by how many times the rate at noon is the rate at midnight.
        flash: when a flash crowd comes, how long it stays, and by how much it multiplies the rate.
        pause: seconds between an answer and the next turn, in the mean.
    """

    rate: float
    daily: float = 1.0
    flash: tuple[float, float, float] = (0.0, 0.0, 1.0)
    turns: float = 4.0
    pause: float = 30.0
    prompts: int = 200
    lengths: Lengths = Lengths()

    def at(self, now: float) -> float:
        """Requests per second."""
        swing = (self.daily - 1) / (self.daily + 1)
        rate = self.rate * (1 - swing * sin(2 * pi * now / DAY + pi / 2))
        begin, length, times = self.flash
        return rate * times if begin <= now < begin + length else rate

    @property
    def highest(self) -> float:
        """A bound of `at`."""
        return 2 * self.rate * self.flash[2]


@dataclass(slots=True, eq=False)
class Conversation:
    """A conversation between its turns: the tokens and blocks that the next prompt begins with.

    What is drawn for it depends on its number alone, and not on when others are answered.
    """

    number: int
    tokens: int
    turns: int
    keys: list[bytes]
    draw: Random

    @property
    def name(self) -> str:
        """What a gateway would find equal in all of its turns."""
        return f"conversation {self.number}"


class Traffic:
    """Draws conversations and their turns; equal seeds draw the same.

    Args:
        load: what is asked.
        seed: of all that is drawn.
        block: tokens of a block.
        gateways: among which a load balancer draws one for each turn.
    """

    def __init__(self, load: Load, seed: int, block: int, gateways: int) -> None:
        self.load = load
        self._seed = seed
        self._draw = Random(seed)
        self._block = block
        self._gateways = gateways
        self._count = 0
        lengths = Random(seed ^ 0x5EED)
        self._systems = [lengths.randint(*load.lengths.systems) for _ in range(load.prompts)]
        weights, total = [], 0.0
        for rank in range(load.prompts):
            total += 1 / (rank + 1)
            weights.append(total)
        self._weights = weights

    def next_arrival(self, now: float) -> float:
        """When the next conversation begins (thinning of a Poisson process)."""
        rate = self.load.highest / self.load.turns
        while True:
            now += self._draw.expovariate(rate)
            if self._draw.random() * self.load.highest < self.load.at(now):
                return now

    def begin(self) -> Conversation:
        """Another conversation, before its first turn."""
        self._count += 1
        draw = Random((self._seed << 40) + self._count)
        system = draw.choices(range(self.load.prompts), cum_weights=self._weights)[0]
        length = self._systems[system]
        turns = 1
        while draw.random() > 1 / self.load.turns:
            turns += 1
        keys = [_key(0, system, place) for place in range(length // self._block)]
        return Conversation(self._count, length, turns, keys, draw)

    def turn(self, conversation: Conversation, now: float) -> Job:
        """Its next turn."""
        draw, lengths = conversation.draw, self.load.lengths
        prompt = conversation.tokens + _length(draw, *lengths.question, lengths.most)
        answer = _length(draw, *lengths.answer, lengths.most)
        conversation.tokens = prompt + answer
        conversation.turns -= 1
        if lengths.context and conversation.tokens + 2 * lengths.most > lengths.context:
            conversation.turns = 0
        keys = conversation.keys
        keys += [
            _key(1, conversation.number, place) for place in range(len(keys), conversation.tokens // self._block + 1)
        ]
        gateway = draw.randrange(self._gateways)
        return Job(conversation.name, [*keys], prompt, answer, gateway, now)

    def pause(self, conversation: Conversation) -> float:
        """Seconds until a client goes on."""
        return conversation.draw.expovariate(1 / self.load.pause)


def _length(draw: Random, median: float, mean: float, most: int) -> int:
    sigma = (2 * log(mean / median)) ** 0.5
    return max(1, min(most, round(median * exp(draw.gauss(0, sigma)))))


def _key(kind: int, number: int, place: int) -> bytes:
    """A block's name, in place of a digest of its tokens and of all before them."""
    return pack(">IIQ", kind, place, number)
