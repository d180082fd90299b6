"""What a worker does again and again happens at the same times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.ticks import next_tick


@given(now=st.floats(0, 1e7), interval=st.sampled_from([0.25, 0.5, 1.0, 2.0]))
def test_a_tick_is_a_later_multiple(now: float, interval: float) -> None:
    found = next_tick(now, interval)
    assert now < found <= now + interval
    assert found % interval == 0
