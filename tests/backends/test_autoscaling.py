from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.autoscaling import Scaling, ScalingState, scale

SCALING = Scaling(min=1, max=4, per_queue=4.0, up_after=5.0, down_after=60.0)


def targets(queues: Iterable[float], scaling: Scaling = SCALING, engines: int = 1) -> list[int]:
    """The number of engines after each second."""
    state, found = ScalingState(), []
    for now, queue in enumerate(queues):
        engines, state = scale(scaling, state, queue, engines, float(now))
        found.append(engines)
    return found


def test_a_queue_that_lasts_starts_as_many_engines_as_it_needs() -> None:
    assert targets([9.0] * 8) == [1] * 5 + [3] * 3


def test_a_burst_that_ends_starts_none() -> None:
    assert targets([100.0] * 5 + [4.0] + [100.0] * 5) == [1] * 11


def test_no_more_are_started_than_were_needed_all_the_time() -> None:
    assert targets([100.0] * 4 + [5.0] * 2)[-1] == 2


def test_a_pause_that_ends_stops_none() -> None:
    assert targets([0.0] * 60 + [16.0] + [0.0] * 60, engines=4) == [4] * 121


def test_engines_that_were_not_needed_for_long_are_stopped() -> None:
    assert targets([0.0] * 61, engines=4)[-2:] == [4, 1]
    assert targets([0.0] * 30 + [7.0] + [0.0] * 30, engines=4)[-1] == 2, "those of the highest need since then stay"


def test_the_limits_hold_at_once() -> None:
    assert targets([0.0], engines=0) == [1]
    assert targets([0.0], engines=9) == [4]
    assert targets([1000.0] * 10)[-1] == 4


def test_what_one_engine_should_have_is_exact() -> None:
    scaling = Scaling(max=100, per_queue=0.1, up_after=0.0)
    assert [scale(scaling, ScalingState(), queue / 10, 1, 0.0)[0] for queue in range(1, 60)] == list(range(1, 60))


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"`max` \(2\) must be at least `min` \(3\)"):
        msgspec.convert({"min": 3, "max": 2}, Scaling)


@given(st.lists(st.floats(0, 1e6), max_size=60), st.integers(1, 4))
def test_the_number_changes_only_to_what_some_queue_of_the_window_needed(queues: list[float], engines: int) -> None:
    scaling = Scaling(min=1, max=50, per_queue=3.0, up_after=3.0, down_after=7.0)
    state = ScalingState()
    needs: list[int] = []
    for now, queue in enumerate(queues):
        needs.append(min(max(-(-int(queue * 1e9) // int(3e9)), 1), 50))
        after, state = scale(scaling, state, queue, engines, float(now))
        assert 1 <= after <= 50
        if after > engines:
            assert after <= min(needs[-4:]) + 1
        if after < engines:
            assert after >= max(needs[-8:]) - 1
        engines = after
