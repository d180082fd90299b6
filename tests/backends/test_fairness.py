"""Fair order between flows: order of arrival within one, no wait for another one's queue, and nobody starves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backends.fairness import FairClock, FairQueue

Waiting = list[tuple[str, int]]
SIZES = st.integers(1, 5000)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 500), st.booleans()), max_size=60))
def test_one_flow_keeps_the_order_of_arrival(given: list[tuple[str, int, bool]]) -> None:
    clock, last = FairClock(), dict[str, float]()
    for flow, tokens, ends_early in given:
        start = clock.start_of(flow, tokens)
        assert start >= last.get(flow, 0.0)
        last[flow] = start
        if ends_early:
            clock.advance(start)
            clock.end(flow, tokens, tokens // 2)


def test_idle_flows_are_forgotten() -> None:
    clock = FairClock()
    for number in range(5000):
        clock.advance(clock.start_of(str(number), 1) + 1)
        clock.end(str(number), 1, 0)
    assert len(clock._shares) < 1100


@given(
    st.lists(SIZES, min_size=1, max_size=30),
    st.integers(0, 40),
    SIZES,
    st.lists(st.integers(0, 29), max_size=10),
)
def test_a_queue_delays_the_first_request_of_another_flow_by_one_at_most(
    sizes: list[int], served: int, other: int, given_up: list[int]
) -> None:
    queue: FairQueue[str] = FairQueue()
    places = [queue.put("greedy", "greedy", tokens) for tokens in sizes * 33]  # up to 1,000 that wait
    for number in given_up:
        queue.drop(places[number % len(places)])
    for _ in range(min(served, len(queue) - 1)):
        queue.take(queue.first)
    queue.put("other", "other", other)
    assert "other" in [queue.take(queue.first) for _ in range(min(2, len(queue)))]


@given(st.lists(st.tuples(st.sampled_from("abc"), SIZES), max_size=40), st.booleans())
def test_everything_is_served_once_and_each_size_of_a_flow_in_the_order_of_arrival(
    waiting: Waiting, short_first: bool
) -> None:
    queue: FairQueue[tuple[int, str, int]] = FairQueue(short_first=short_first)
    for number, (flow, tokens) in enumerate(waiting):
        queue.put((number, flow, tokens), flow, tokens)
    served = [queue.take(queue.first) for _ in waiting]
    assert len(queue) == 0
    assert sorted(served) == [(number, *each) for number, each in enumerate(waiting)]
    for flow in "abc":
        for tokens in {tokens for _, tokens in waiting}:
            numbers = [number for number, whose, size in served if (whose, size) == (flow, tokens)]
            assert numbers == sorted(numbers)
            if not short_first:
                break
    if not short_first:
        for flow in "abc":
            assert [n for n, whose, _ in served if whose == flow] == sorted(n for n, w, _ in served if w == flow)


def test_a_short_request_overtakes_long_ones_that_have_waited_longer() -> None:
    queue: FairQueue[str] = FairQueue(short_first=True)
    for number in range(10):
        queue.put(f"long {number}", "", 4000)
    queue.take(queue.first)
    queue.put("short", "", 10)
    assert "short" in [queue.take(queue.first) for _ in range(2)]


def test_what_is_served_beside_the_first_delays_nobody_else() -> None:
    queue: FairQueue[int] = FairQueue()
    places = [queue.put(number, "greedy", 100) for number in range(10)]
    queue.take(places[0])
    queue.take(places[9])
    queue.put(10, "other", 100)
    assert [queue.take(queue.first) for _ in range(3)] == [10, 1, 2]
