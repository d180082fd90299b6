"""What runs in the next step.

One rule: each step every running sequence catches up to its token count, under one budget of tokens. Prefill is a
sequence that is far behind (and takes several steps if the budget is short: chunked prefill), decode one that is one
token behind, a prefix hit one that starts less far behind. There are no phases.

Order is (priority, arrival), for the running and the waiting alike. When blocks run out, or what waits is of greater
priority, the last running sequence is preempted: it gives its blocks back and later recomputes its tokens. So the first
in order always gets on, and every sequence ends. One that is held keeps its place and its blocks, and is passed over.
Imports no torch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable

from backends.native.engine.scheduling.block_pool import BlockPool, extend_keys
from backends.native.engine.scheduling.sequence import Sequence, Work


class Refused(Exception):
    """The sequence will not be run; the text says why, for the client."""


class Overloaded(Refused):
    """Too many are waiting; the same sequence may be submitted again later."""


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


class Scheduler:
    """Keeps the running and the waiting sequences and shares out each step.

    Counts since it was made: `preemptions`, the tokens that were looked up in the prefix cache (`prefix_queries`), and
    those of them that were found (`prefix_hits`).

    Args:
        pool: the blocks; the scheduler is the only one to move them.
        step_tokens: the most tokens of one step; at least `max_sequences`.
        max_sequences: the most sequences running at once.
        max_waiting: the most sequences waiting for their first step.
        chunked: whether a prompt may be split over steps; if not, `step_tokens` must hold the longest.
        prompt_logprob_chunk: the most tokens a step runs of a prompt whose logprobs are wanted, since each of them
            costs a row of logits.
        on_preempted: told of every preempted sequence.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        step_tokens: int,
        max_sequences: int,
        max_waiting: int = 1024,
        chunked: bool = True,
        prompt_logprob_chunk: int = 256,
        on_preempted: Callable[[Sequence], None] = lambda _: None,
    ) -> None:
        if step_tokens < max_sequences:
            raise ValueError(f"a step of {step_tokens} tokens cannot give {max_sequences} sequences one each")
        self.pool = pool
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._step_tokens = step_tokens
        self._max_sequences = max_sequences
        self._max_waiting = max_waiting
        self._chunked = chunked
        self._prompt_logprob_chunk = prompt_logprob_chunk
        self._on_preempted = on_preempted

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait its turn.

        Raises:
            Overloaded: the queue is full, and no other engine had let the sequence in.
            Refused: it could not be finished even alone.
        """
        if self.pool.blocks_for(sequence.longest) > self.pool.count:
            room = self.pool.count * self.pool.size
            raise Refused(f"prompt and max_new_tokens are {sequence.longest} tokens; the engine has room for {room}")
        if len(self.waiting) >= self._max_waiting and not sequence.request.again:
            raise Overloaded(f"{len(self.waiting)} sequences are waiting already")
        insort(self.waiting, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that ended or is not wanted any more, and free its blocks."""
        for queue in (self.running, self.waiting):
            index = bisect_left(queue, sequence.order, key=_order)
            if index < len(queue) and queue[index] is sequence:
                del queue[index]
        self.pool.release(sequence.blocks)
        sequence.forget_computed()

    def schedule(self) -> list[Work]:
        """The next step's work, at most one piece a sequence; the blocks it writes to are already reserved."""
        self._make_way()
        waiting = len(self.waiting)
        works = self._continue_running()
        if len(self.waiting) == waiting:  # nobody was preempted: there may be room for more
            self._admit_waiting(works)
        return works

    def commit(self, work: Work) -> None:
        """Note that `work` was run; its full blocks become part of the prefix cache."""
        sequence, size = work.sequence, self.pool.size
        first, sequence.computed = sequence.computed // size, work.start + work.count
        if sequence.computed < (first + 1) * size or not self.pool.caching:
            return
        full = sequence.computed // size
        extend_keys(sequence.block_keys, sequence.tokens, full, size, sequence.salt, sequence.block_extra)
        for index in range(first, full):
            self.pool.publish(sequence.blocks[index], sequence.block_keys[index])

    def _make_way(self) -> None:
        """Preempt what is of lesser priority than the first in line, until that can be admitted."""
        first = next((sequence for sequence in self.waiting if not sequence.held), None)
        while first is not None and self.running:
            last = self.running[-1]
            if last.request.priority >= first.request.priority:
                return
            if len(self.running) < self._max_sequences and self._fits(first, self._cached_blocks(first)):
                return
            self._preempt(self.running.pop())

    def _continue_running(self) -> list[Work]:
        works: list[Work] = []
        budget = self._step_tokens
        size = self.pool.size
        for position, sequence in enumerate(self.running):  # the end of which may be preempted meanwhile
            if sequence.held:
                continue
            if len(sequence.tokens) - sequence.computed == 1:  # decode: the budget has one for each
                work = Work(sequence, sequence.computed, 1, True)
            else:  # a long prefill leaves each later one its token
                work = self._piece(sequence, budget - (len(self.running) - position - 1))
            end = work.start + work.count
            if end > len(sequence.blocks) * size and not self._reserve(sequence, end):
                break
            works.append(work)
            budget -= work.count
        return works

    def _admit_waiting(self, works: list[Work]) -> None:
        budget = self._step_tokens - sum(work.count for work in works)
        place = 0
        while place < len(self.waiting) and budget > 0 and len(self.running) < self._max_sequences:
            sequence = self.waiting[place]
            if sequence.held:
                place += 1
                continue
            if not self._chunked and len(sequence.tokens) > budget:
                break
            hits = self._cached_blocks(sequence)
            if self._is_in_the_making(sequence, len(hits)) or not self._fits(sequence, hits):
                break
            self._admit(sequence, hits)
            del self.waiting[place]
            insort(self.running, sequence, key=_order)
            works.append(self._piece(sequence, budget))
            budget -= works[-1].count

    def _piece(self, sequence: Sequence, budget: int) -> Work:
        pending = sequence.pending
        if pending == 1 <= budget:
            return Work(sequence, sequence.computed, 1, True)
        limit = min(budget, self._prompt_logprob_chunk) if self._chunked and sequence.scores_prompt else budget
        count = min(pending, limit)
        assert count > 0, "a running sequence always has a token to run, and the budget one for it"
        return Work(sequence, sequence.computed, count, count == pending)

    def _is_in_the_making(self, sequence: Sequence, block: int) -> bool:
        """Whether a running sequence is about to compute this block of `sequence`, which can use it a step later. Those
        behind wait as well: they lose only what the other's last chunk leaves of a step.
        """
        if sequence.scores_prompt or block >= len(sequence.block_keys):
            return False
        key, end = sequence.block_keys[block], (block + 1) * self.pool.size
        return any(one.computed < end and one.block_keys[block : block + 1] == [key] for one in self.running)

    def _fits(self, sequence: Sequence, hits: list[int]) -> bool:
        """Whether there are blocks for all tokens of a waiting sequence, beside the `hits` that it finds in the cache.

        One more block is left free for every running sequence, whose next token may need it: without that, a full pool
        would admit a sequence and preempt it in the same breath.
        """
        needed = self.pool.blocks_for(len(sequence.tokens)) - len(hits)
        return needed + len(self.running) <= self.pool.free - self.pool.idle(hits)

    def _admit(self, sequence: Sequence, hits: list[int]) -> None:
        """Give a waiting sequence that fits its blocks."""
        pool = self.pool
        pool.take(hits)
        sequence.blocks = array("q", hits + pool.allocate(pool.blocks_for(len(sequence.tokens)) - len(hits)))
        sequence.computed = len(hits) * pool.size
        if sequence.cached_tokens is None:  # what it finds again after a preemption is its own
            sequence.cached_tokens = sequence.computed
            if pool.caching:
                self.prefix_queries += len(sequence.tokens)
                self.prefix_hits += sequence.computed

    def _cached_blocks(self, sequence: Sequence) -> list[int]:
        """Blocks it can start from. Its last token is always run, since its logits are wanted."""
        if sequence.scores_prompt or not self.pool.caching:
            return []
        full = (len(sequence.tokens) - 1) // self.pool.size
        extend_keys(sequence.block_keys, sequence.tokens, full, self.pool.size, sequence.salt, sequence.block_extra)
        return self.pool.find(sequence.block_keys[:full])

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Get the blocks that `tokens` tokens lack, preempting from the end of the line; False if that came to it."""
        missing = self.pool.blocks_for(tokens) - len(sequence.blocks)
        while self.pool.free < missing:
            victim = self.running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks.extend(self.pool.allocate(missing))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.pool.release(sequence.blocks)
        sequence.forget_computed()
        insort(self.waiting, sequence, key=_order)
        self._on_preempted(sequence)
