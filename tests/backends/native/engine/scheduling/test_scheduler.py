"""The scheduler: its rule by example, and its invariants under any interleaving of submit, cancel and step.

The state machine keeps a model of the cache: the tokens that each slot was written with. It thereby notices a wrong
prefix hit, a block with two owners, or a token that was never run, without torch.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.engine.scheduling.scheduler import Overloaded, Refused, Scheduler
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Feature, Submit, Unchunked


def sequence(
    arrival: int, prompt: int | tuple[int, ...], new: int = 4, priority: int = 0, prompt_logprobs: int = -1
) -> Sequence:
    tokens = tuple(range(arrival * 1000, arrival * 1000 + prompt)) if isinstance(prompt, int) else prompt
    return Sequence(0, Submit(arrival, tokens, new, priority=priority, prompt_logprobs=prompt_logprobs), arrival)


def scheduler(blocks: int = 100, size: int = 4, **options: Any) -> Scheduler:
    return Scheduler(BlockPool(blocks, size), **{"step_tokens": 16, "max_sequences": 8, **options})


def spans(works: list[Work]) -> list[tuple[int, int, int]]:
    return [(work.sequence.arrival, work.start, work.count) for work in works]


def run(scheduler: Scheduler, works: list[Work]) -> None:
    """Do what the engine does with a step; a generated token is a function of the tokens before it."""
    for work in works:
        scheduler.commit(work)
        if work.samples:
            work.sequence.tokens.append(sum(work.sequence.tokens) % 7)
            if work.sequence.generated >= work.sequence.request.max_new_tokens:
                scheduler.remove(work.sequence)


def step(scheduler: Scheduler) -> list[tuple[int, int, int]]:
    works = scheduler.schedule()
    run(scheduler, works)
    return spans(works)


def test_a_held_sequence_is_passed_over_and_keeps_its_place() -> None:
    s = scheduler(max_sequences=2)
    held, other, later = sequence(0, 3), sequence(1, 3), sequence(2, 3)
    held.held = True
    for each in (held, other, later):
        s.add(each)
    assert step(s) == [(1, 0, 3), (2, 0, 3)]
    held.held, other.held = False, True
    assert step(s) == [(2, 3, 1)]
    assert s.waiting == [held]  # both places are taken
    s.remove(later)
    assert step(s) == [(0, 0, 3)]
    other.held = False
    assert step(s) == [(0, 3, 1), (1, 3, 1)]


def test_a_long_prompt_is_prefilled_in_chunks_beside_running_decodes() -> None:
    s = scheduler()
    s.add(sequence(0, 3))
    assert step(s) == [(0, 0, 3)]
    s.add(sequence(1, 40))
    assert step(s) == [(0, 3, 1), (1, 0, 15)]
    assert step(s) == [(0, 4, 1), (1, 15, 15)]
    assert step(s) == [(0, 5, 1), (1, 30, 10)]
    assert step(s) == [(1, 40, 1)]


def test_a_long_prefill_leaves_one_token_of_the_budget_to_each_later_sequence() -> None:
    s = scheduler()
    early, late = sequence(0, 40), sequence(1, 2)
    s.add(late)
    assert step(s) == [(1, 0, 2)]
    early.request = replace(early.request, flow="other")  # it goes before the one that runs, as if it were preempted
    s.add(early)
    step(s)
    assert step(s) == [(0, 15, 15), (1, 3, 1)]


def test_a_prefix_hit_starts_after_the_cached_blocks() -> None:
    s = scheduler()
    s.add(sequence(0, (1, 2, 3, 4, 5, 6, 7, 8, 9)))
    step(s)
    again = sequence(1, (1, 2, 3, 4, 5, 6, 7, 8, 9))
    s.add(again)
    assert step(s) == [(0, 9, 1), (1, 8, 1)]
    assert again.cached_tokens == 8


def test_a_sequence_waits_for_a_shared_prefix_that_is_being_computed() -> None:
    s = scheduler()
    shared = tuple(range(30))
    for arrival in range(3):
        s.add(sequence(arrival, (*shared, 100 + arrival)))
    assert step(s) == [(0, 0, 16)]
    assert step(s) == [(0, 16, 15)]
    assert step(s) == [(0, 31, 1), (1, 28, 3), (2, 28, 3)]


def test_the_wait_for_a_shared_prefix_ends_when_its_owner_is_cancelled() -> None:
    s = scheduler()
    leader, other = sequence(0, 40), sequence(1, tuple(range(40)))
    s.add(leader)
    s.add(other)
    assert step(s) == [(0, 0, 16)]
    s.remove(leader)
    assert step(s) == [(1, 16, 16)]


def test_the_last_token_is_run_even_if_every_block_is_cached() -> None:
    s = scheduler()
    s.add(sequence(0, (1, 2, 3, 4, 5, 6, 7, 8)))
    step(s)
    s.add(sequence(1, (1, 2, 3, 4, 5, 6, 7, 8)))
    assert step(s)[1] == (1, 4, 4)


def test_sequences_with_different_salts_share_no_blocks() -> None:
    s = scheduler()
    s.add(sequence(0, (1, 2, 3, 4, 5)))
    step(s)
    salted = sequence(1, (1, 2, 3, 4, 5))
    salted.salt = b"lora"
    s.add(salted)
    assert step(s)[1] == (1, 0, 5)


def test_prompt_logprobs_run_the_whole_prompt_in_small_chunks() -> None:
    s = scheduler(prompt_logprob_chunk=5)
    s.add(sequence(0, (1, 2, 3, 4, 5, 6, 7, 8, 9)))
    step(s)
    s.add(sequence(1, (1, 2, 3, 4, 5, 6, 7, 8, 9), prompt_logprobs=0))
    assert step(s)[1] == (1, 0, 5)
    assert step(s)[1] == (1, 5, 4)


def test_greater_priority_goes_first_then_earlier_arrival() -> None:
    s = scheduler(max_sequences=1)
    for arrival, priority in enumerate((0, 1, 0, 1)):
        s.add(sequence(arrival, 2, new=1, priority=priority))
    assert [step(s)[0][0] for _ in range(4)] == [1, 3, 0, 2]


def test_the_last_sequence_is_preempted_and_recomputes() -> None:
    preempted: list[Sequence] = []
    s = scheduler(blocks=5, on_preempted=preempted.append)
    s.add(sequence(0, 6, new=8))
    s.add(sequence(1, 7, new=4))
    assert step(s) == [(0, 0, 6), (1, 0, 7)]  # two blocks each, one left
    assert step(s) == [(0, 6, 1), (1, 7, 1)]
    assert step(s) == [(0, 7, 1), (1, 8, 1)]  # the later one takes it
    assert step(s) == [(0, 8, 1)]
    assert [(victim.arrival, victim.computed, len(victim.tokens)) for victim in preempted] == [(1, 0, 10)]
    assert s.preemptions == 1
    for position in range(9, 13):
        assert step(s) == [(0, position, 1)]
    assert step(s) == [(1, 4, 6)], "its first block was still cached"


def test_a_sequence_is_not_admitted_into_the_blocks_that_running_ones_need_next() -> None:
    s = scheduler(blocks=3)
    s.add(sequence(0, 3, new=4))
    assert step(s) == [(0, 0, 3)]
    s.add(sequence(1, 8, new=1))  # needs both free blocks
    assert step(s) == [(0, 3, 1)], "the first block is full now: the next token needs a second one"
    for position in (4, 5):
        assert step(s) == [(0, position, 1)]
    assert step(s) == [(1, 0, 8)]
    assert s.preemptions == 0


def test_without_chunking_a_prompt_waits_for_a_step_that_holds_all_of_it() -> None:
    s = scheduler(unchunked="prompt", step_tokens=12, max_sequences=4)
    s.add(sequence(0, 10))
    s.add(sequence(1, 10))
    assert step(s) == [(0, 0, 10)]
    assert step(s) == [(0, 10, 1), (1, 0, 10)]


def test_a_sequence_larger_than_the_cache_is_refused() -> None:
    s = scheduler(blocks=2)
    s.add(sequence(0, 4, new=4))
    with pytest.raises(Refused, match="prompt and max_new_tokens are 9 tokens; the engine has room for 8"):
        s.add(sequence(1, 5, new=4))


def test_a_full_waiting_queue_raises_overloaded() -> None:
    s = scheduler(max_waiting=1)
    s.add(sequence(0, 1))
    with pytest.raises(Overloaded):
        s.add(sequence(1, 1))
    step(s)
    s.add(sequence(1, 1))


def test_a_sequence_resubmitted_after_a_crash_is_queued_beyond_the_limit() -> None:
    s = scheduler(max_waiting=1)
    s.add(sequence(0, 1))
    again = sequence(1, 1)
    again.request = replace(again.request, again=True)
    s.add(again)
    assert len(s.waiting) == 2


@pytest.mark.parametrize("options", [{"max_sequences": 2}, {"blocks": 9}])
def test_a_running_sequence_is_preempted_for_greater_priority(options: dict[str, Any]) -> None:
    s = scheduler(**options)
    for arrival, priority in enumerate((0, -1)):
        s.add(sequence(arrival, 13, new=4, priority=priority))
    step(s)
    step(s)
    s.add(sequence(2, 13, new=4))
    assert {arrival for arrival, _, _ in step(s)} == {0, 2}
    assert [waiting.arrival for waiting in s.waiting] == [1]


def test_priority_does_not_preempt_while_there_is_room() -> None:
    s = scheduler()
    s.add(sequence(0, 3, priority=-1))
    step(s)
    s.add(sequence(1, 3))
    assert {arrival for arrival, _, _ in step(s)} == {0, 1}
    for arrival in range(2, 8):
        s.add(sequence(arrival, 3))
        step(s)
    assert s.preemptions == 0


def test_blocks_found_again_after_a_preemption_do_not_count_as_prefix_hits() -> None:
    s = scheduler(max_sequences=1)
    s.add(sequence(0, 9, priority=-1))
    step(s)
    s.add(sequence(1, 5, new=1))
    step(s)
    assert step(s) == [(0, 8, 2)], "its own blocks"
    assert (s.preemptions, s.prefix_queries, s.prefix_hits) == (1, 14, 0)


def test_the_step_budget_must_hold_a_token_for_every_sequence() -> None:
    with pytest.raises(ValueError, match="cannot give 8 sequences one each"):
        scheduler(step_tokens=7)


class Interleavings(RuleBasedStateMachine):
    """Any order of submit, cancel and step over a small pool, with prompts that share prefixes."""

    @initialize(
        blocks=st.integers(3, 12),
        size=st.integers(1, 4),
        step_tokens=st.integers(3, 12),
        unchunked=st.sampled_from(("nothing", "image", "prompt")),
        caching=st.booleans(),
    )
    def start(self, blocks: int, size: int, step_tokens: int, unchunked: Unchunked, caching: bool) -> None:
        self.pool = BlockPool(blocks, size, caching=caching and unchunked != "prompt")
        self.unchunked = unchunked
        self.step_tokens = step_tokens if unchunked != "prompt" else blocks * size + 3
        self.scheduler = Scheduler(
            self.pool,
            step_tokens=self.step_tokens,
            max_sequences=3,
            max_waiting=5,
            unchunked=unchunked,
            prompt_logprob_chunk=2,
        )
        self.slots: dict[int, tuple[int, ...]] = {}  # slot -> the tokens up to and with the one it holds
        self.live: list[Sequence] = []
        self.ended: set[int] = set()
        self.arrivals = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        new=st.integers(1, 8),
        priority=st.integers(0, 1),
        prompt_logprobs=st.sampled_from([-1, -1, 0]),
        image=st.tuples(st.integers(0, 9), st.integers(1, 6)),
    )
    def submit(self, prompt: list[int], new: int, priority: int, prompt_logprobs: int, image: tuple[int, int]) -> None:
        added = sequence(self.arrivals, tuple(prompt), new, priority, prompt_logprobs)
        offset, length = image
        if self.unchunked == "image" and offset + length <= len(prompt):
            added.request = replace(added.request, features=(Feature(b"image", offset, length, b"", ()),))
        self.arrivals += 1
        try:
            self.scheduler.add(added)
        except Overloaded:
            assert len(self.scheduler.waiting) >= 5
        except Refused:
            too_long = bool(added.request.features) and length > self.step_tokens - 3
            assert too_long or len(prompt) + new > self.pool.count * self.pool.size
        else:
            self.live.append(added)

    @precondition(lambda self: self.live)
    @rule(choice=st.integers(0))
    def cancel(self, choice: int) -> None:
        gone = self.live.pop(choice % len(self.live))
        self.scheduler.remove(gone)
        self.ended.add(gone.arrival)

    @precondition(lambda self: self.live)
    @rule(choice=st.integers(0), held=st.booleans())
    def hold(self, choice: int, held: bool) -> None:
        self.live[choice % len(self.live)].held = held

    @rule()
    def step(self) -> None:
        first = next((each for each in self.scheduler.waiting if not each.held), None)
        works = self.scheduler.schedule()
        assert not any(work.sequence.held for work in works)
        if not any(each.held for each in self.live):
            assert bool(works) == bool(self.live), "at least the first sequence in order makes progress"
        assert sum(work.count for work in works) <= self.step_tokens
        assert len({work.sequence for work in works}) == len(works)
        for work in works:
            for image in work.sequence.request.features:
                end = work.start + work.count
                assert not image.offset < end < image.offset + image.length, "no image is cut"
        if first in self.scheduler.waiting and len(self.scheduler.running) == 3:
            last = self.scheduler.running[-1]
            assert first.request.priority <= last.request.priority, (
                "no running sequence of lower priority keeps the first waiting one out"
            )
        completed = [block for work in works for block in self.prompt_blocks(work)]
        assert len(completed) == len(set(completed)), "no shared block is computed twice in a step"
        for work in works:
            self.write(work)
        for work in works:
            self.scheduler.commit(work)
            assert work.sequence.computed == work.start + work.count
            if work.samples:
                work.sequence.tokens.append(sum(work.sequence.tokens) % 2)
                if work.sequence.generated == work.sequence.request.max_new_tokens:
                    self.end(work.sequence)

    def prompt_blocks(self, work: Work) -> list[tuple[Any, ...]]:
        """The shareable blocks of a prompt that are full after the work, by their content."""
        prompt, size = work.sequence.request.prompt, self.pool.size
        if work.sequence.scores_prompt or not self.pool.caching:
            return []
        ends = range(work.start // size * size + size, work.start + work.count + 1, size)
        images = work.sequence.request.features
        return [
            (*prompt[:end], *((each.offset, each.length) for each in images if each.offset < end))
            for end in ends
            if end < len(prompt)
        ]

    def write(self, work: Work) -> None:
        """Check that all tokens before the work are in the cache, then write those of the work."""
        owner, size = work.sequence, self.pool.size
        assert work.start == owner.computed
        for position in range(work.start + work.count):
            slot = owner.blocks[position // size] * size + position % size
            content = tuple(owner.tokens[: position + 1])
            if position < work.start:
                assert self.slots[slot] == content
            else:
                self.slots[slot] = content

    def end(self, gone: Sequence) -> None:
        assert gone.arrival not in self.ended
        self.ended.add(gone.arrival)
        self.live.remove(gone)
        self.scheduler.remove(gone)

    @invariant()
    def no_block_or_sequence_is_lost(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        queued = self.scheduler.running + self.scheduler.waiting
        assert sorted(s.arrival for s in queued) == sorted(s.arrival for s in self.live)
        assert len(self.scheduler.running) <= 3
        assert all(not s.blocks and not s.computed for s in self.scheduler.waiting)
        held = {block for s in self.scheduler.running for block in s.blocks}
        assert len(held) + self.pool.free == self.pool.count

    def teardown(self) -> None:
        """Without further input every sequence ends and every block is released."""
        if not hasattr(self, "pool"):
            return
        for each in self.live:
            each.held = False
        for _ in range(2000):
            if not self.live:
                break
            self.step()
        assert not self.live
        assert self.pool.free == self.pool.count
        self.pool.check()


Interleavings.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestInterleavings = pytest.mark.slow(Interleavings.TestCase)
