"""Fair order between flows in the engine's queue: equal tokens for those that wait, and nobody starves."""

from __future__ import annotations

from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.engine.scheduling.scheduler import Scheduler
from backends.native.engine.scheduling.sequence import Sequence
from backends.native.protocol.messages import Submit


def sequence(arrival: int, flow: str, prompt: int = 2, new: int = 2) -> Sequence:
    return Sequence(0, Submit(arrival, (arrival,) * prompt, new, flow=flow), arrival)


def scheduler(*, short_first: bool = False, at_once: int = 1) -> Scheduler:
    return Scheduler(BlockPool(1000, 4), step_tokens=64, max_sequences=at_once, short_first=short_first)


def served(s: Scheduler, steps: int) -> list[int]:
    """The sequences that ended in so many steps, in order."""
    ended = []
    for _ in range(steps):
        for work in s.schedule():
            s.commit(work)
            if work.samples:
                work.sequence.tokens.append(0)
                if work.sequence.generated >= work.sequence.request.max_new_tokens:
                    s.remove(work.sequence)
                    ended.append(work.sequence.arrival)
    return ended


def test_a_flow_that_comes_later_waits_for_no_queue() -> None:
    s = scheduler()
    for number in range(100):
        s.add(sequence(number, "greedy"))
    assert served(s, 4) == [0, 1]
    s.add(sequence(100, "other"))
    s.add(sequence(101, "other"))
    assert served(s, 10) == [100, 2, 101, 3, 4]


def test_flows_that_wait_get_equal_tokens_whatever_their_sizes() -> None:
    s = scheduler()
    for number in range(40):
        s.add(sequence(number, "small", new=4))
        s.add(sequence(100 + number, "large", new=22))
    ended = served(s, 200)
    tokens = {True: 0, False: 0}
    for each in ended:
        tokens[each >= 100] += 24 if each >= 100 else 6
    assert abs(tokens[True] - tokens[False]) <= 24


def test_short_ones_overtake_long_ones_and_do_not_starve_them() -> None:
    s = scheduler(short_first=True)
    for number in range(10):
        s.add(sequence(number, "", new=62))
    served(s, 1)
    for number in range(100, 200):
        s.add(sequence(number, "", new=2))
    ended = served(s, 300)
    assert ended[:3] == [0, 100, 101]
    assert 1 in ended
    assert ended.index(1) < 60


def test_a_flow_does_not_pay_for_what_it_cancels() -> None:
    s = scheduler()
    cancelled = [sequence(number, "one", new=1000) for number in range(20)]
    for each in cancelled:
        s.add(each)
    for each in reversed(cancelled):
        s.remove(each)
    s.add(sequence(20, "two", new=8))
    s.add(sequence(21, "two", new=8))
    s.add(sequence(22, "one", new=8))
    s.add(sequence(23, "two", new=8))
    assert served(s, 32).index(22) < 3
