"""Which of several equal servers gets a request, and the index of what they have cached."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from backends.affinity import AffinityPolicy, Candidate, PrefixIndex, choose, draws

NAMES = ("a", "b", "c", "d")
POLICIES: tuple[AffinityPolicy, ...] = ("prefix", "conversation", "least")


def idle(*names: str) -> list[Candidate]:
    return [Candidate(name, 0) for name in names]


def chosen(
    policy: AffinityPolicy,
    candidates: list[Candidate],
    blocks: int = 0,
    conversation: str | None = None,
    draw: float = 0.0,
) -> str:
    return candidates[choose(policy, candidates, blocks, conversation, draw)].name


def test_the_longest_cached_prefix_attracts_a_request() -> None:
    candidates = [Candidate("a", 2), Candidate("b", 3, hits=10), Candidate("c", 2, hits=4)]
    assert chosen("prefix", candidates, blocks=10) == "b"
    assert chosen("least", candidates, blocks=10) == "a"


def test_one_process_alone_takes_the_least_loaded_and_draws_among_equals() -> None:
    candidates = [Candidate(name, load) for name, load in zip("abcde", (2, 1, 3, 1, 1), strict=True)]
    drawn = Counter(chosen("least", candidates, draw=number / 300) for number in range(300))
    assert drawn == {"b": 100, "d": 100, "e": 100}
    candidates[3] = Candidate("d", 0)
    assert {chosen(policy, candidates, draw=number / 300) for policy in POLICIES for number in range(300)} == {"d"}


def test_what_is_drawn_is_spread_evenly() -> None:
    for start in (0.0, 0.3, 0.999):
        numbers = draws(start)
        drawn = Counter(int(8 * next(numbers)) for _ in range(80))
        assert set(drawn) == set(range(8))
        assert max(drawn.values()) - min(drawn.values()) <= 3


def test_processes_that_know_old_figures_of_each_other_spread_their_requests() -> None:
    """Each of 50 knows its own requests and one report. The least loaded gets most, and by far not all."""
    rng = random.Random(1)
    reports = {str(number): 4 + number % 8 for number in range(32)}
    gained = Counter[str]()
    for _ in range(50):
        numbers, own = draws(rng.random()), Counter[str]()
        for _ in range(4):
            candidates = [Candidate(name, own[name] + load, reported=load) for name, load in reports.items()]
            own[chosen("least", candidates, draw=next(numbers))] += 1
        gained += own
    least = [name for name, load in reports.items() if load == 4]
    assert sum(gained[name] for name in least) > 200 * len(least) / len(reports)
    assert max(load + gained[name] for name, load in reports.items()) < 2 * (sum(reports.values()) + 200) / 32


def test_a_short_prefix_does_not_outweigh_a_queue_or_a_full_cache() -> None:
    assert chosen("prefix", [Candidate("a", 1), Candidate("b", 8, hits=1)], blocks=10) == "a"
    assert chosen("prefix", [Candidate("a", 1), Candidate("b", 1, hits=2, cache_use=0.9)], blocks=10) == "a"


def test_a_prompt_that_everybody_begins_with_makes_no_server_slow() -> None:
    """A thousand requests of one prompt, which are all still running: no server has much more than its share."""
    loads = dict.fromkeys(NAMES, 0)
    for _ in range(1000):
        candidates = [Candidate(name, load, hits=100 if name == "a" else 0) for name, load in loads.items()]
        loads[chosen("prefix", candidates, blocks=100, conversation="one")] += 1
    assert max(loads.values()) <= 1.5 * 250 + 4
    assert loads["a"] == max(loads.values())


def test_conversations_stay_and_are_spread() -> None:
    homes = {str(number): chosen("conversation", idle(*NAMES), conversation=str(number)) for number in range(400)}
    assert all(count > 60 for count in Counter(homes.values()).values())
    for number, home in homes.items():
        assert chosen("prefix", idle(*reversed(NAMES)), blocks=9, conversation=number) == home, "no hit anywhere"
    without = {number: chosen("conversation", idle("a", "b", "c"), conversation=number) for number in homes}
    assert all(without[number] == home for number, home in homes.items() if home != "d")


def test_a_conversation_leaves_a_server_that_has_too_much() -> None:
    home = chosen("conversation", idle(*NAMES), conversation="one")
    crowded = [Candidate(name, 9 if name == home else 0) for name in NAMES]
    assert chosen("conversation", crowded, conversation="one") != home


@given(
    st.sampled_from(POLICIES),
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 20), st.floats(0, 1), st.integers(0, 50)), min_size=1, max_size=8
    ),
    st.none() | st.text(max_size=4),
    st.floats(0, 1, exclude_max=True),
)
def test_a_candidate_is_always_found_and_never_one_above_the_bound(
    policy: AffinityPolicy, given: list[tuple[int, int, float, int]], conversation: str | None, draw: float
) -> None:
    candidates = [
        Candidate(str(number), load, hits, use, min(load, reported))
        for number, (load, hits, use, reported) in enumerate(given)
    ]
    load = candidates[choose(policy, candidates, 20, conversation, draw)].load
    assert load <= 1.5 * sum(each.load for each in candidates) / len(candidates) + 4


def test_the_index_agrees_with_sets_of_blocks() -> None:
    """After random reports, the hits are those of a search through each candidate's own set."""
    rng = random.Random(1)
    keys = [number.to_bytes(16, "big") for number in range(12)]
    index, held = PrefixIndex(), [set[bytes]() for _ in range(5)]
    for _ in range(400):
        number, some = rng.randrange(5), rng.sample(keys, rng.randint(0, 8))
        match rng.randrange(8):
            case 0:
                index.clear(number)
                held[number].clear()
            case 1 | 2 | 3:
                index.remove(number, some)
                held[number].difference_update(some)
            case _:
                index.store(number, some)
                held[number].update(some)
        asked = keys[: rng.randint(0, len(keys))]
        runs = [next((n for n, key in enumerate(asked) if key not in own), len(asked)) for own in held]
        assert index.hits(asked) == {number: run for number, run in enumerate(runs) if run}
        assert len(index) == len(set().union(*held))
