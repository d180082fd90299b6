"""The state pool: dense slots, states that are only used where they are right, and bounded snapshots."""

from __future__ import annotations

import pytest
import torch

from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.state.pool import StatePool
from backends.native.engine.state.step import StateView, groups_of
from backends.native.protocol.messages import Submit

pytestmark = pytest.mark.torch

BLOCK = 4
NAME = (0, "recurrent", 0)


def sequence(arrival: int, length: int = 16) -> Sequence:
    made = Sequence(0, Submit(arrival, tuple(range(length)), 1), arrival)
    made.block_keys.extend(bytes([arrival, block]) for block in range(length // BLOCK))
    return made


def run(pool: StatePool, works: list[Work]) -> None:
    """A step in which each layer's state becomes (arrival, tokens seen)."""
    for work in works:
        assert pool.lacking(work) is None
    pool.begin(works)
    for group in groups_of(works, pool, torch.device("cpu")):
        rows = [[work.sequence.arrival, work.start + work.count] for work in group.works]
        group.states.update_recurrent_state(torch.tensor(rows, dtype=torch.float32), 0)
        group.states.write_back()
    pool.commit(works)


def state(pool: StatePool, owner: Sequence) -> list[float]:
    array = pool.array(NAME)
    assert array is not None
    found: list[float] = array[pool.slot(owner)].tolist()
    return found


def test_slots_stay_dense_when_a_sequence_leaves() -> None:
    pool, owners = StatePool(BLOCK), [sequence(arrival) for arrival in range(5)]
    run(pool, [Work(owner, 0, 5, samples=True) for owner in owners])
    pool.forget(owners[1])
    remaining = [owners[0], *owners[2:]]
    assert sorted(map(pool.slot, remaining)) == [0, 1, 2, 3]
    assert [state(pool, owner) for owner in remaining] == [[owner.arrival, 5] for owner in remaining]
    pool.forget(owners[1])


def test_neighbours_in_decode_are_changed_in_place_and_others_by_copies() -> None:
    pool, owners = StatePool(BLOCK), [sequence(arrival) for arrival in range(4)]
    run(pool, [Work(owner, 0, 5, samples=True) for owner in owners])
    (group,) = groups_of([Work(owner, 5, 1, samples=True) for owner in owners[1:3]], pool, torch.device("cpu"))
    found, array = group.states.get_recurrent_state(0), pool.array(NAME)
    assert found is not None
    assert array is not None
    assert found.data_ptr() == array[1].data_ptr()
    works = [
        Work(owners[3], 5, 1, samples=True),
        Work(owners[1], 5, 4, samples=True),
        Work(owners[0], 5, 1, samples=True),
    ]
    run(pool, works)
    assert [state(pool, owner) for owner in owners] == [[0, 6], [1, 9], [2, 5], [3, 6]]


def test_a_state_that_a_failed_step_left_is_not_used() -> None:
    pool, owner = StatePool(BLOCK), sequence(0)
    run(pool, [Work(owner, 0, 5, samples=True)])
    work = Work(owner, 5, 1, samples=True)
    assert pool.lacking(work) is None
    pool.begin([work])  # and no `commit`
    before = pool.lacking(work)
    assert before is not None
    assert (before.start, before.count, before.samples) == (0, 5, False)


def test_a_sequence_goes_on_from_the_longest_snapshot() -> None:
    pool, first, second = StatePool(BLOCK, snapshots=4), sequence(0), sequence(1)
    second.block_keys[:2] = first.block_keys[:2]
    for blocks in (1, 2):
        run(pool, [Work(first, (blocks - 1) * BLOCK, BLOCK, samples=False)])
        pool.save(first, first.block_keys[blocks - 1], replace=False)
    assert pool.resumable(second.block_keys) == 2
    before = pool.lacking(Work(second, 11, 1, samples=True))
    assert before is not None
    assert (before.start, before.count) == (8, 3)
    assert state(pool, second) == [0, 8]


def test_snapshots_are_bounded_and_the_least_recently_used_goes() -> None:
    pool, owner = StatePool(BLOCK, snapshots=2), sequence(0)
    run(pool, [Work(owner, 0, 4, samples=False)])
    for key in (b"a", b"b", b"a", b"c"):
        pool.save(owner, key, replace=False)
    assert [pool.resumable([key]) for key in (b"a", b"b", b"c")] == [1, 0, 1]


def test_a_sequence_in_decode_keeps_its_newest_snapshot_only() -> None:
    pool, owner = StatePool(BLOCK, snapshots=8), sequence(0)
    run(pool, [Work(owner, 0, 4, samples=False)])
    pool.save(owner, b"prompt", replace=False)
    for key in (b"a", b"b"):
        pool.save(owner, key, replace=True)
    assert [pool.resumable([key]) for key in (b"prompt", b"a", b"b")] == [1, 0, 1]


def test_a_convolution_sees_the_inputs_before_a_chunk() -> None:
    pool, owner = StatePool(BLOCK), sequence(0)
    pool.lacking(Work(owner, 0, 2, samples=False))
    fresh, later = (StateView(pool, slice(0, 1), fresh=fresh) for fresh in (True, False))
    first = fresh.update_conv_state(torch.tensor([[[1.0, 2.0]]]), 0, conv_kernel_size=3)
    assert first.tolist() == [[[0, 1, 2]]]
    assert later.update_conv_state(torch.tensor([[[3.0, 4.0]]]), 0).tolist() == [[[0, 1, 2, 3, 4]]]
    assert later.get_conv_state(0).tolist() == [[[2, 3, 4]]]  # type: ignore[union-attr]


def test_layers_of_transformers_5_17_read_states_as_attributes_of_the_cache() -> None:
    pool, owner = StatePool(BLOCK), sequence(0)
    run(pool, [Work(owner, 0, 5, samples=True)])
    fresh, later = (StateView(pool, slice(0, 1), fresh=fresh).layers[0] for fresh in (True, False))
    assert fresh.recurrent_states[0] is None
    assert later.conv_states[0] is None
    assert not later.record_past
    found = later.recurrent_states[0]
    assert found is not None
    found += 1  # as its kernels do
    assert state(pool, owner) == [1, 6]
