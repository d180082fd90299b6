"""One engine: steps of continuous batching with chunked prompts over the product's own block pool.

Steps of one composition are one event until a request comes or ends, which is cheaper than a step at a time. The rules
are those of the product's scheduler (`scheduled` has it, to compare) for requests of one priority and flow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil
from typing import NamedTuple

from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.protocol.messages import Pong


class Speed(NamedTuple):
    """What a step takes, in seconds.

    Attributes:
        step: without anything in it.
        sequence: for each sequence.
        cached: for each cached token.
        prompts: for the tokens of prompts in it: their numbers, in order, and the seconds of each; linear between.
        pace: how many times as long all of that takes, in each second of the run, and after them as in the last one;
            none: once.
    """

    step: float = 0.020
    sequence: float = 0.00015
    cached: float = 0.0
    prompts: Sequence[tuple[int, float]] = ((0, 0.0), (8000, 1.0))
    pace: Sequence[float] = ()

    def of(self, sequences: int, cached: float, prompt: int, now: float) -> float:
        """Of a step with so many sequences, cached tokens and tokens of prompts, which begins at `now`."""
        seconds = self.step + self.sequence * sequences + self.cached * cached
        if prompt:
            place = bisect_left(self.prompts, (prompt, 0.0))
            (before, low), (after, high) = self.prompts[place - 1 : place + 1]
            seconds += low + (high - low) * (prompt - before) / (after - before)
        return seconds * self.pace[min(int(now), len(self.pace) - 1)] if self.pace else seconds


class Shape(NamedTuple):
    """An engine's limits."""

    blocks: int = 3000
    block: int = 64
    sequences: int = 64
    step_tokens: int = 512
    waiting: int = 1024


@dataclass(slots=True, eq=False)
class Job:
    """A request, and what became of it. Times are simulated seconds.

    Attributes:
        keys: of all full blocks of prompt and answer.
        gateway: the number of the gateway that it came to.
        received: tokens that the client had when an engine ended; the next one computes them with the prompt.
        cut: when the engine ended that had it, until its text goes on; then -1 again.
        pause: the longest time from such an end until its text went on.
    """

    conversation: str
    keys: list[bytes]
    prompt: int
    answer: int
    gateway: int
    arrived: float
    first: float = -1.0
    received: int = 0
    cached: int = 0
    cut: float = -1.0
    pause: float = 0.0
    moves: int = 0
    # At the present engine: its rank, tokens to compute, made until the step `began`, blocks, those with a key.
    rank: int = 0
    left: int = 0
    made: int = 0
    began: int = 0
    blocks: list[int] = field(default_factory=list)
    published: int = 0

    def go_on(self, now: float) -> None:
        """Its client gets a token that it has not."""
        if self.cut >= 0:
            self.pause, self.cut = max(self.pause, now - self.cut), -1.0


class Stepped(NamedTuple):
    """What the end of a step gave: jobs with their first tokens, and jobs that ended."""

    first: list[Job]
    ended: list[Job]


class Replica:
    """An engine.

    Attributes:
        until: when the present steps end; None: it is idle.
        version: of `until`, which an arrival makes earlier.
    """

    def __init__(self, number: int, speed: Speed, shape: Shape) -> None:
        self.number = number
        self.speed, self.shape = speed, shape
        self.pool = BlockPool(shape.blocks, shape.block)
        self.pool.watch()
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []
        self.decoding: list[tuple[int, int, Job]] = []  # a heap: the number of the step after which there is news
        self.until: float | None = None
        self.version = 0
        self._steps = self._order = self._kv = 0
        self._count = 0  # of the present steps
        self._began = self._each = 0.0
        self._chunks: list[tuple[Job, int]] = []

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self.prefilling) + len(self.decoding)

    @property
    def queue(self) -> int:
        """Sequences, running and waiting."""
        return self.running + len(self.waiting)

    def pong(self) -> Pong:
        """What it answers to a ping."""
        return Pong(0, self.running, self.queue - self.running, self.pool.free, self.pool.count)

    def submit(self, now: float, job: Job) -> bool:
        """Queue a job; False: the queue is full."""
        if len(self.waiting) >= self.shape.waiting and not job.moves:
            return False
        self._order += 1
        job.rank, job.made, job.blocks = self._order, job.received, []
        self.waiting.append(job)
        if self.until is None:
            self._begin(now)
        elif not self._chunks and self._count > 1:
            # The present step ends first.
            done = min(self._count, max(1, ceil((now - self._began) / self._each)))
            if done < self._count:
                self._count = done
                self.until = self._began + done * self._each
                self.version += 1
        return True

    def end_step(self, now: float) -> Stepped:
        """The present steps have ended; the next ones begin."""
        self._steps += self._count
        self._kv += self._count * len(self.decoding)
        stepped = Stepped([], [])
        for _, _, job in self.decoding:
            computed = job.prompt + self._made(job) - 1
            if (missing := self.pool.blocks_for(computed) - len(job.blocks)) > 0:
                job.blocks += self.pool.allocate(missing)
            self._publish(job, computed)
        for job, tokens in self._chunks:
            job.left -= tokens
            self._publish(job, job.prompt + job.made - job.left)
            if not job.left:
                self.prefilling.remove(job)
                self._decode(job, now, stepped)
        while self.decoding and self.decoding[0][0] <= self._steps:
            job = heappop(self.decoding)[2]
            self._kv -= job.prompt + job.answer
            self._end(job, stepped)
        self._begin(now)
        return stepped

    def halt(self, now: float) -> None:
        """End it, within the present steps: what they have made so far is with the clients."""
        if self.until is not None and self._count > 1:
            self._steps += int((now - self._began) / self._each)
        self.until = None
        self.version += 1

    def jobs(self) -> list[Job]:
        """All that is unfinished, each with the tokens that its client has."""
        for _, _, job in self.decoding:
            job.received = self._made(job)
        for job in (*self.prefilling, *self.waiting):
            job.received = max(job.received, job.made)
        return [*(job for _, _, job in self.decoding), *self.prefilling, *self.waiting]

    def _made(self, job: Job) -> int:
        return job.made + self._steps - job.began

    def _begin(self, now: float) -> None:
        self.version += 1
        preempted = self._reserve()
        budget = self.shape.step_tokens - len(self.decoding)
        self._chunks = []
        for job in self.prefilling:
            budget = self._chunk(job, budget)
        if not preempted:
            self._admit(budget)
        rows = len(self.decoding)
        if not self._chunks and not rows:
            self.until = None
            return
        alone = self._chunks or preempted or self.speed.pace
        self._count = 1 if alone else self._steps_with_room()
        # The cache grows by a token for each sequence and step: what it has in the middle.
        cached = self._kv + rows * (self._count - 1) / 2
        self._each = self.speed.of(rows + len(self._chunks), cached, sum(tokens for _, tokens in self._chunks), now)
        self._began, self.until = now, now + self._count * self._each

    def _missing(self, steps: int) -> int:
        """Blocks that so many steps of all sequences in decode need besides theirs."""
        needed, blocks_for = 0, self.pool.blocks_for
        for _, _, job in self.decoding:
            needed += max(0, blocks_for(job.prompt + self._made(job) + steps - 1) - len(job.blocks))
        return needed

    def _steps_with_room(self) -> int:
        """Steps until there is news, or as many as there are blocks for."""
        steps = self.decoding[0][0] - self._steps
        while steps > 1 and self._missing(steps) > self.pool.free:
            steps //= 2
        return steps

    def _reserve(self) -> bool:
        """Preempt the last sequences until the next step has blocks; whether any was."""
        preempted = False
        while self.decoding and self._missing(1) > self.pool.free:
            preempted = True
            last = max([*(job for _, _, job in self.decoding), *self.prefilling], key=lambda job: job.rank)
            if last in self.prefilling:
                self.prefilling.remove(last)
            else:
                self.decoding = [each for each in self.decoding if each[2] is not last]
                heapify(self.decoding)
                last.made = self._made(last)
                self._kv -= last.prompt + last.made
            self.pool.release(last.blocks)
            last.blocks = []
            self.waiting.appendleft(last)
        return preempted

    def _chunk(self, job: Job, budget: int) -> int:
        if tokens := min(job.left, budget):
            self._chunks.append((job, tokens))
        return budget - tokens

    def _admit(self, budget: int) -> None:
        pool, size = self.pool, self.shape.block
        while self.waiting and budget > 0 and self.running < self.shape.sequences:
            job = self.waiting[0]
            tokens = job.prompt + job.made
            known = (tokens - 1) // size
            hits = pool.find(job.keys[:known])
            place = len(hits)
            # Another sequence computes its next block just now: it can have it soon.
            if place < known and any(other.keys[place : place + 1] == [job.keys[place]] for other in self.prefilling):
                return
            needed = pool.blocks_for(tokens) - place
            if needed + self.running > pool.free - pool.idle(hits):
                return
            self.waiting.popleft()
            pool.take(hits)
            job.blocks = hits + pool.allocate(needed)
            job.published, job.left = place, tokens - place * size
            if job.first < 0 and not job.cached:
                job.cached = place * size
            self.prefilling.append(job)
            budget = self._chunk(job, budget)

    def _decode(self, job: Job, now: float, stepped: Stepped) -> None:
        """All tokens are computed, and one more is made."""
        job.made, job.began = job.made + 1, self._steps
        if job.first < 0:
            job.first = now
            stepped.first.append(job)
        job.go_on(now)
        if job.made == job.answer:
            self._end(job, stepped)
        else:
            self._kv += job.prompt + job.made
            self._order += 1
            heappush(self.decoding, (job.began + job.answer - job.made, self._order, job))

    def _end(self, job: Job, stepped: Stepped) -> None:
        self.pool.release(job.blocks)
        stepped.ended.append(job)

    def _publish(self, job: Job, computed: int) -> None:
        full = computed // self.shape.block
        for place in range(job.published, full):
            self.pool.publish(job.blocks[place], job.keys[place])
        job.published = max(job.published, full)
