"""The scheduler: which tokens of which sequences run in the next step.

Strategy: continuous batching. The batch is composed anew for every step (iteration-level scheduling, Orca, Yu et al.,
OSDI 2022), over a paged KV cache (vLLM, arXiv 2309.06180).

- *One rule instead of phases*: in each step every running sequence catches up to its token count, under one budget of
  tokens. Prefill is a sequence that is many tokens behind, decode one that is one token behind, a prefix hit one that
  starts less far behind. A prompt longer than the budget takes several steps (chunked prefill, Sarathi-Serve,
  arXiv 2403.02310), so that decodes go on beside it.
- *Order* is (priority, virtual start, arrival) in both queues, running and waiting. The virtual start is fair between
  the flows of sequences (`backends.fairness`); in one flow it grows with arrival, unless short ones go first. The first
  in order always makes progress, hence every sequence ends.
- *Preemption*: when blocks run out, or a waiting sequence has greater priority, the last running sequence is preempted:
  its blocks are released. Later what they held is found in the prefix cache or the swap space, or is computed again.
- *Admission* keeps one free block in reserve for every running sequence, so that a sequence is not admitted only to be
  preempted a step later; and it defers a sequence whose next block another sequence is about to compute.
- *Recurrent state* is found again only where a snapshot of it was taken. A prompt's chunks end where one is useful: at
  its last full block, for a prompt that continues it, and where the prefix cache of its pages ends, since what two
  prompts had in common a third will, too. In decode the newest state of a sequence is kept every few blocks.
- A *held* sequence (its grammar mask is not ready) keeps its place and its blocks, and is passed over.

Imports no torch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable
from time import monotonic

from backends.fairness import FairClock
from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.engine.scheduling.sequence import Sequence, StateSnapshots, SwapSpace, Work
from backends.native.engine.scheduling.unchunked import Span, image_spans, unsplit
from backends.native.protocol.blocks import extend_keys
from backends.native.protocol.messages import Unchunked

# Blocks between two snapshots of a sequence in decode. Each replaces the one before.
_DECODE_SNAPSHOT_BLOCKS = 4

MOST_ROWS = 24
"""Rows of a step that verifies drafts: as many as the skinny GEMM takes, which gives each row the sums that it has
alone."""


class Refused(Exception):
    """The sequence cannot be run. The text is the reason, for the client."""


class Overloaded(Refused):
    """Too many sequences are waiting. The same sequence may be submitted again later."""


def _order(sequence: Sequence) -> tuple[int, float, int]:
    return sequence.order


class Scheduler:
    """Holds the queues of running and waiting sequences and composes each step.

    Attributes:
        pool: the blocks of the KV cache.
        swap: where preempted sequences keep what they have computed; None: nowhere.
        looks_ahead: whether what is stored at a token depends on the next one, too (`mtp_drafts`): then the last of the
            blocks that a prefix finds in the cache is computed again.
        running: sequences that hold blocks, in order.
        waiting: sequences that hold none, in order.
        preemptions: counted since the start.
        prefix_queries: tokens that were looked up in the prefix cache since the start.
        prefix_hits: tokens that were found there.

    Args:
        pool: the blocks; nothing but the scheduler allocates or releases them.
        step_tokens: the most tokens of one step; at least `max_sequences`.
        max_sequences: the most sequences running at once.
        max_waiting: the most sequences in the waiting queue; beyond, `add` raises `Overloaded`.
        unchunked: what must not be split over steps; `step_tokens` must hold the largest.
        prompt_logprob_chunk: the most tokens of a step for a prompt whose logprobs are requested, since each of them
            costs a row of logits.
        short_first: whether short sequences do not wait for long ones (`FairClock`).
        on_preempted: called with every preempted sequence.
        snapshots: of recurrent state; None: the model has none, and pages are all that a prefix hit needs.

    Raises:
        ValueError: `step_tokens` is less than `max_sequences`.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        step_tokens: int,
        max_sequences: int,
        max_waiting: int = 1024,
        unchunked: Unchunked = "nothing",
        prompt_logprob_chunk: int = 256,
        short_first: bool = False,
        on_preempted: Callable[[Sequence], None] = lambda _: None,
        snapshots: StateSnapshots | None = None,
    ) -> None:
        if step_tokens < max_sequences:
            raise ValueError(f"a step of {step_tokens} tokens cannot give {max_sequences} sequences one each")
        self.pool = pool
        self.swap: SwapSpace | None = None
        self.looks_ahead = False
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._step_tokens = step_tokens
        self._max_sequences = max_sequences
        self._max_waiting = max_waiting
        self._unchunked = unchunked
        self._prompt_logprob_chunk = prompt_logprob_chunk
        self._clock = FairClock(short_first=short_first)
        self._on_preempted = on_preempted
        self._snapshots = snapshots if pool.caching else None

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence.

        Raises:
            Overloaded: the queue is full, and the sequence had not been admitted by an engine that crashed.
            Refused: it would not fit into the KV cache even alone.
        """
        # Checked here, since no later step could help: alone with the whole pool, the sequence would preempt itself and
        # never fit again.
        if self.pool.blocks_for(sequence.longest) > self.pool.count:
            room = self.pool.count * self.pool.size
            raise Refused(f"prompt and max_new_tokens are {sequence.longest} tokens; the engine has room for {room}")
        room = self._step_tokens - self._max_sequences
        if (longest := max((stop - first for first, stop in self._spans(sequence)), default=0)) > room:
            raise Refused(f"images without text between them have {longest} tokens; a step has room for {room}")
        # Preempted sequences return to `waiting` without this check: they were admitted once and must not be refused.
        # The same holds for sequences that a crashed engine had admitted (`again`).
        if len(self.waiting) >= self._max_waiting and not sequence.request.again:
            raise Overloaded(f"{len(self.waiting)} sequences are waiting already")
        sequence.virtual_start = self._clock.start_of(sequence.request.flow, sequence.longest)
        insort(self.waiting, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that ended or was cancelled, and release its blocks."""
        # The caller does not know the queue. Sort keys are unique (`arrival`), so a bisection finds the sequence or
        # shows that it is not in this queue.
        for queue in (self.running, self.waiting):
            index = bisect_left(queue, sequence.order, key=_order)
            if index < len(queue) and queue[index] is sequence:
                del queue[index]
        self._clock.end(sequence.request.flow, sequence.longest, sequence.longest - sequence.computed)
        self.pool.release(sequence.blocks)
        sequence.forget_computed()
        if self.swap is not None:
            self.swap.drop(sequence)

    def schedule(self) -> list[Work]:
        """Compose the next step: at most one work per sequence, with blocks reserved for the tokens it writes."""
        # Order of the steps: a running sequence that will be preempted for priority must not get work first, and
        # running sequences take their tokens of the budget before new ones are admitted.
        self._preempt_for_priority()
        waiting = len(self.waiting)
        works = self._continue_running()
        if len(self.waiting) == waiting:  # no sequence was preempted: there may be room for more
            self._admit_waiting(works)
        return works

    def commit(self, work: Work, accepted: int = 0) -> None:
        """Record that `work` was run, and publish the blocks that it filled to the prefix cache.

        The first `accepted` of its drafts are tokens of the sequence now. Keys and values of the others stay in its
        blocks until the tokens that come in their places are run.
        """
        work.sequence.computed = work.start + work.count - len(work.drafts) + accepted
        self.publish(work)

    def publish(self, work: Work) -> None:
        """Publish the blocks that `work` has filled, as far as its sequence still has them, to the prefix cache."""
        sequence, size = work.sequence, self.pool.size
        # Less than the work's end: drafts were wrong, or the sequence was preempted since it was launched. More: its
        # next step was launched, too.
        end = min(sequence.computed, work.start + work.count, sequence.stored)
        first = sequence.published
        # Decode fills a block only in one of `size` steps: most works end here.
        if end < (first + 1) * size or not self.pool.caching:
            return
        # Only now is a block shared: its keys and values are in the cache. In `schedule` the step could still fail.
        full = end // size
        extend_keys(sequence.block_keys, sequence.tokens, full, size, sequence.salt, sequence.block_extra)
        for index in range(first, full):
            self.pool.publish(sequence.blocks[index], sequence.block_keys[index])
        sequence.published = full
        if self._snapshots is not None and sequence.computed % size == 0:
            self._save_state(sequence, full, self._snapshots)

    def _save_state(self, sequence: Sequence, blocks: int, snapshots: StateSnapshots) -> None:
        """Keep the state behind the last of `blocks` full blocks, if it may be of use."""
        key = sequence.block_keys[blocks - 1]
        if blocks in self._snapshot_blocks(sequence):
            snapshots.save(sequence, key, replace=False)
        elif sequence.pending == 0 and blocks % _DECODE_SNAPSHOT_BLOCKS == 0:
            snapshots.save(sequence, key, replace=True)

    def _snapshot_blocks(self, sequence: Sequence) -> tuple[int, int]:
        """The numbers of leading blocks behind which a prompt's state is kept, if there are any."""
        return sequence.shared_blocks, sequence.full_blocks(self.pool.size)

    def _preempt_for_priority(self) -> None:
        """Preempt running sequences of lower priority than the first waiting one, until that one can be admitted."""
        # The queue is ordered, so no waiting sequence has a greater priority than the first that is not held.
        first = next((sequence for sequence in self.waiting if not sequence.held), None)
        while first is not None and self.running:
            last = self.running[-1]
            # `running` is ordered, too: if its last sequence is not of lower priority, none is. Equal priority never
            # preempts, or two sequences could preempt each other in turns.
            if last.request.priority >= first.request.priority:
                return
            if len(self.running) < self._max_sequences and self._fits(first, self._cached_blocks(first)):
                return
            self._preempt(self.running.pop())

    def _continue_running(self) -> list[Work]:
        works: list[Work] = []
        budget = self._step_tokens
        size = self.pool.size
        spare = max(0, MOST_ROWS - len(self.running))
        # Step tokens are divided in order. `step_tokens >= max_sequences` guarantees that every decode gets its token;
        # what prefills can get is what these leave.
        for position, sequence in enumerate(self.running):  # `_reserve` may shorten the list from its end
            if sequence.held:
                continue
            later = len(self.running) - position - 1
            if len(sequence.tokens) - sequence.computed == 1:  # decode: the budget has a token for every sequence
                drafts = self._affordable(sequence, min(budget - later, 1 + spare)) if sequence.drafts else ()
                spare -= len(drafts)
                work = Work(sequence, sequence.computed, 1 + len(drafts), True, drafts)
            elif (chunk := self._chunk(sequence, budget - later)) is not None:
                work = chunk  # prefill: one token of the budget was left to each later sequence
            else:
                continue
            end = work.start + work.count
            # Victims are taken from the end of the queue, at or behind this position: no work in `works` belongs to
            # one. After a False this sequence was the last victim, and nobody is left behind it.
            if end > len(sequence.blocks) * size and not self._reserve(sequence, end):
                break
            works.append(work)
            budget -= work.count
        return works

    def _affordable(self, sequence: Sequence, budget: int) -> tuple[int, ...]:
        """The drafts of a sequence in decode that `budget` tokens and the blocks that are left have room for.

        No sequence is preempted for a draft, and every other running sequence's next token still finds a block.
        """
        blocks = len(sequence.blocks) + max(0, self.pool.free - len(self.running))
        return sequence.drafts[: max(0, min(budget, blocks * self.pool.size - sequence.computed) - 1)]

    def _admit_waiting(self, works: list[Work]) -> None:
        budget = self._step_tokens - sum(work.count for work in works)
        index = 0
        # A sequence that does not fit ends the loop instead of being skipped: otherwise short prompts that keep
        # arriving would starve a long one. Only held sequences are skipped; `index` counts them.
        while index < len(self.waiting) and budget > 0 and len(self.running) < self._max_sequences:
            sequence = self.waiting[index]
            if sequence.held:
                index += 1
                continue
            # A prompt that must be run whole waits for a step with enough tokens left.
            if self._unchunked == "prompt" and len(sequence.tokens) > budget:
                break
            hits = self._cached_blocks(sequence)
            if self._is_being_computed(sequence, len(hits)):
                break
            if self.looks_ahead:
                hits = hits[:-1]
            if not self._fits(sequence, hits):
                break
            self._admit(sequence, hits)
            del self.waiting[index]
            # Not an append: a sequence of greater priority, or one that was held while later ones were admitted,
            # belongs before sequences that run already.
            insort(self.running, sequence, key=_order)
            work = self._chunk(sequence, budget)
            if work is None:
                break
            works.append(work)
            budget -= work.count

    def _spans(self, sequence: Sequence) -> list[Span]:
        """What of a sequence must not be cut."""
        return image_spans(sequence.request.features) if self._unchunked == "image" else []

    def _chunk(self, sequence: Sequence, budget: int) -> Work | None:
        """The next tokens of a sequence, as many as `budget` has room for; None: it waits for a step with more."""
        pending = sequence.pending
        if pending == 1 <= budget:
            return Work(sequence, sequence.computed, 1, True)
        # Each scored token makes a row of logits: 256 rows of 128,000 float32 scores are 131 MB. A runner that cannot
        # chunk prompts gets no such bound.
        scored = sequence.scores_prompt and self._unchunked != "prompt"
        limit = min(budget, self._prompt_logprob_chunk) if scored else budget
        count = min(pending, limit)
        if self._snapshots is not None:
            ends = (blocks * self.pool.size - sequence.computed for blocks in self._snapshot_blocks(sequence))
            count = min((end for end in ends if 0 < end < count), default=count)
        assert count > 0, "a running sequence has a pending token, and the budget has room for it"
        if self._unchunked == "image" and not (
            count := unsplit(self._spans(sequence), sequence.computed, count, budget)
        ):
            return None
        return Work(sequence, sequence.computed, count, count == pending)

    def _is_being_computed(self, sequence: Sequence, block: int) -> bool:
        """Whether a running sequence is about to compute block `block` of `sequence`, which can then share it.

        The sequence is deferred, and all that wait behind it, so that order is kept: they lose no more than the tokens
        that the running sequence's last chunk leaves of a step.
        """
        # Blocks that are not full at admission have no key; a prompt that is scored shares nothing.
        if sequence.scores_prompt or block >= len(sequence.block_keys):
            return False
        # `block` is the first block that was not found in the cache, or whose state was not. A running sequence with
        # the same key there will publish it within a few steps. One that has computed it did so in a step that was
        # launched and is not read, or left no state.
        key, end = sequence.block_keys[block], (block + 1) * self.pool.size
        return any(
            len(other.block_keys) > block
            and other.block_keys[block] == key
            and (self._snapshots is None or other.computed < end)
            for other in self.running
        )

    def _fits(self, sequence: Sequence, hits: list[int]) -> bool:
        """Whether there are blocks for all tokens of a waiting sequence, besides its cached blocks, `hits`.

        One block stays free for every running sequence, whose next token may need it. Without this reserve a full pool
        would admit a sequence in one step only to preempt it in the next.
        """
        needed = self.pool.blocks_for(len(sequence.tokens)) - len(hits)
        # Hits that lie in the free list leave it when they are taken, so they must not be counted as free, too.
        return needed + len(self.running) <= self.pool.free - self.pool.idle(hits)

    def _admit(self, sequence: Sequence, hits: list[int]) -> None:
        """Give its blocks to a waiting sequence that fits."""
        self._clock.advance(sequence.virtual_start)
        pool = self.pool
        # Take before allocate: `allocate` evicts free blocks, and the hits may be among them until they are referenced.
        pool.take(hits)
        sequence.blocks = array("q", hits + pool.allocate(pool.blocks_for(len(sequence.tokens)) - len(hits)))
        sequence.computed = len(hits) * pool.size
        if self.swap is not None and (restored := self.swap.restore(sequence, len(hits))):
            sequence.computed = restored
            full = slice(len(hits), restored // pool.size)
            for block, key in zip(sequence.blocks[full], sequence.block_keys[full], strict=False):  # no keys: no cache
                pool.publish(block, key)
        if sequence.cached_tokens is None:  # what it finds again after a preemption is its own
            sequence.cached_tokens = sequence.computed
            sequence.admitted = monotonic()
            if pool.caching:
                self.prefix_queries += len(sequence.tokens)
                self.prefix_hits += sequence.computed

    def _cached_blocks(self, sequence: Sequence) -> list[int]:
        """Find the cached blocks to start from. The last token is always run, since its logits are needed."""
        if sequence.scores_prompt or not self.pool.caching:
            return []
        # A prompt that ends with a full block does not get that block from the cache, so that at least one token is
        # left to run.
        full = sequence.full_blocks(self.pool.size)
        extend_keys(sequence.block_keys, sequence.tokens, full, self.pool.size, sequence.salt, sequence.block_extra)
        found = self.pool.find(sequence.block_keys[:full])
        if self._snapshots is None:
            return found
        sequence.shared_blocks = len(found)
        return found[: self._snapshots.resumable(sequence.block_keys[: len(found)])]

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Allocate the blocks that `tokens` tokens still need, preempting from the end of the running queue.

        False if the sequence itself had to be preempted.
        """
        # Running sequences alone may outgrow the pool: admission reserves blocks for present tokens, not for `longest`.
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
        if self.swap is not None:
            self.swap.save(sequence)
        self.pool.release(sequence.blocks)
        sequence.forget_computed()
        # By its original arrival: preemption does not cost a sequence its place among those of equal priority.
        insort(self.waiting, sequence, key=_order)
        self._on_preempted(sequence)
