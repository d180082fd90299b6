"""The block pool: conservation of blocks, reuse by content, and the order of eviction."""

from __future__ import annotations

import pytest

from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.protocol.blocks import block_key, extend_keys


def keys_of(tokens: list[int], size: int, extra: bytes = b"") -> list[bytes]:
    keys: list[bytes] = []
    extend_keys(keys, tokens, len(tokens) // size, size, extra)
    return keys


def test_a_key_depends_on_all_earlier_tokens_and_on_the_salt() -> None:
    plain = keys_of([1, 2, 3, 4, 5, 6], 2)
    assert len(set(plain)) == 3
    assert keys_of([1, 2, 3, 4], 2) == plain[:2]
    assert keys_of([9, 2, 3, 4], 2)[1] != plain[1]
    assert not set(keys_of([1, 2, 3, 4], 2, b"lora")) & set(plain)
    assert keys_of([1, 1, 1, 1], 2)[0] != keys_of([1, 1, 1, 1], 2)[1]


def test_existing_keys_are_extended() -> None:
    keys = keys_of([1, 2], 2)
    extend_keys(keys, [1, 2, 3, 4], 2, 2)
    assert keys == keys_of([1, 2, 3, 4], 2)
    assert keys[1] == block_key(keys[0], [3, 4])


def test_a_published_block_is_found_after_its_release() -> None:
    pool = BlockPool(4, 2)
    keys = keys_of([1, 2, 3, 4], 2)
    blocks = pool.allocate(2)
    for block, key in zip(blocks, keys, strict=True):
        pool.publish(block, key)
    pool.release(blocks)
    assert pool.free == 4
    assert pool.find(keys) == blocks
    assert pool.idle(blocks) == 2
    pool.take(blocks)
    assert pool.free == 2
    assert pool.idle(blocks) == 0
    pool.check()


def test_find_stops_at_the_first_missing_key() -> None:
    pool = BlockPool(4, 2)
    keys = keys_of([1, 2, 3, 4, 5, 6], 2)
    blocks = pool.allocate(3)
    pool.publish(blocks[0], keys[0])
    pool.publish(blocks[2], keys[2])
    assert pool.find(keys) == blocks[:1]


def test_eviction_takes_blocks_without_key_first_then_the_tail_of_the_least_recently_used() -> None:
    pool = BlockPool(5, 2)
    old, new = keys_of([1, 1, 2, 2], 2), keys_of([3, 3], 2)
    first = pool.allocate(2)
    for block, key in zip(first, old, strict=True):
        pool.publish(block, key)
    pool.release(first)
    second = pool.allocate(1)
    pool.publish(second[0], new[0])
    pool.release(second)

    pool.allocate(2)  # the two that were never used
    assert pool.find(old) == first
    pool.allocate(1)
    assert pool.find(old) == first[:1]
    assert pool.find(new) == second
    pool.allocate(1)
    assert pool.find(old) == []
    assert pool.find(new) == second
    pool.check()


def test_the_first_block_published_under_a_key_is_kept() -> None:
    pool = BlockPool(2, 1)
    first, second = pool.allocate(2)
    pool.publish(first, b"same")
    pool.publish(second, b"same")
    pool.release([second])
    assert pool.find([b"same"]) == [first]
    pool.check()


def test_find_returns_nothing_without_caching() -> None:
    pool = BlockPool(1, 1, caching=False)
    block = pool.allocate(1)[0]
    pool.publish(block, b"key")
    assert pool.find([b"key"]) == []


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert BlockPool(1, 4).blocks_for(tokens) == blocks


def test_allocating_more_blocks_than_are_free_is_an_error_and_loses_none() -> None:
    pool = BlockPool(2, 1)
    with pytest.raises(ValueError, match="3 blocks requested, 2 free"):
        pool.allocate(3)
    assert pool.free == 2
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0, 1)


def test_touched_blocks_are_counted_once_and_stay_counted() -> None:
    pool = BlockPool(8, 4, caching=False)
    counts = [pool.touched]
    for wanted in (2, 3, 1, 0):
        blocks = pool.allocate(wanted)
        counts.append(pool.touched)
        pool.release(blocks)
    held = [pool.allocate(3), pool.allocate(5)]
    assert (counts, pool.touched) == ([0, 2, 3, 3, 3], 8)
    for blocks in held:
        pool.release(blocks)
    assert pool.touched == 8


def test_cached_blocks_leave_untouched_ones_for_later() -> None:
    """What is kept for its prefix is used again last: each new prompt touches new blocks until there are none."""
    pool = BlockPool(8, 4)
    for number in range(20):
        (block,) = pool.allocate(1)
        pool.publish(block, bytes([number]))
        pool.release([block])
        assert pool.touched == min(number + 1, 8)


def test_changes_of_the_cache_are_noted_once_somebody_watches() -> None:
    pool = BlockPool(3, 4)
    first, second = pool.allocate(2)
    pool.publish(first, b"a" * 16)
    assert pool.take_changes() == (b"", b"")
    assert pool.watch() == b"a" * 16
    pool.publish(second, b"b" * 16)
    assert pool.take_changes() == (b"b" * 16, b"")
    assert pool.take_changes() == (b"", b"")
    pool.release([first, second])
    pool.allocate(3)
    stored, removed = pool.take_changes()
    assert (stored, {removed[:16], removed[16:]}) == (b"", {b"a" * 16, b"b" * 16})


def test_clearing_the_cache_is_a_change() -> None:
    pool = BlockPool(2, 4)
    pool.watch()
    (block,) = pool.allocate(1)
    pool.publish(block, b"a" * 16)
    pool.release([block])
    pool.clear()
    assert pool.take_changes() == (b"", b"a" * 16)
