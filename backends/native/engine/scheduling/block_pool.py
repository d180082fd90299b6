"""The block pool: reference counts of the KV cache's blocks, and the prefix cache over them.

Strategy: the KV cache is paged (PagedAttention, Kwon et al., arXiv 2309.06180): a sequence holds a table of fixed-size
blocks, so there is no fragmentation and no copy when it grows.

- *State*: a block is either referenced (by one or more sequences) or in the free list, never both.
- *Sharing*: a full block whose tokens are computed is published under a key, a hash chained over all tokens before it
  (automatic prefix caching, as in vLLM). A sequence that starts with the same tokens references the same block. Only
  full blocks are shared and they are never written again, so no copy-on-write is needed: the partly filled last block
  of a sequence is always its own.
- *Eviction* is lazy: a released block keeps its key until it is handed out for other content, blocks without a key
  first, then least recently used; of one sequence the last block goes first, since a prefix is useful without its end.

The pool handles block numbers only; the tensors are in `attention.kv_cache`. Imports no torch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """`count` blocks of `size` tokens each, with reference counts and, if `caching`, a prefix cache.

    Raises:
        ValueError: `count` or `size` is less than 1.
    """

    def __init__(self, count: int, size: int, *, caching: bool = True) -> None:
        if count < 1 or size < 1:
            raise ValueError(f"a block pool needs at least one block of one token, not {count} of {size}")
        self.count = count
        self.size = size
        self.caching = caching
        self._references = [0] * count
        # In order of eviction, the next block to hand out first. A dict and not a deque: `take` removes from the
        # middle.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self.touched = 0
        """How many blocks have ever been used: the memory of the others has not been touched."""
        # `_keys` and `_by_key` are inverse to each other; a block keeps its key while it is free, until `_evict`.
        self._keys: list[bytes | None] = [None] * count
        self._by_key: dict[bytes, int] = {}
        self._changed: dict[bytes, bool] | None = None  # by key, whether it is cached now; None: nobody asks

    @property
    def free(self) -> int:
        """How many blocks no sequence references."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks `tokens` tokens need; the last may be filled in part."""
        return -(-tokens // self.size)

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """Look up the cached blocks of the longest leading run of `keys`. Adds no reference: `take` does."""
        found: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are in the free list, and would leave it if they were taken."""
        return sum(self._references[block] == 0 for block in blocks)

    def take(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of the blocks, which `find` returned."""
        for block in blocks:
            # A free block that is shared again leaves the free list without losing its content.
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks for new content, evicting what they cached.

        Raises:
            ValueError: fewer are free.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks requested, {len(self._free)} free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        # Blocks that were never used are free in their order, so the highest number counts them all.
        self.touched = max(self.touched, max(blocks, default=-1) + 1)
        for block in blocks:
            self._references[block] = 1
            self._evict(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Remove a reference from each of the blocks. The last of them is evicted first."""
        # The free list is evicted from its front. Appended in reverse, the end of a sequence is evicted before its
        # start, without which the end cannot be found.
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if self._keys[block] is None:  # nothing to reuse: hand it out before any cached block
                    self._free.move_to_end(block, last=False)

    def publish(self, block: int, key: bytes) -> None:
        """Add a referenced, full and computed block to the prefix cache. If `key` is cached, `block` stays private."""
        # Two sequences that compute the same tokens side by side both arrive here. The second block stays without a key
        # and is the first to be handed out once it is released.
        if self.caching and self._keys[block] is None and key not in self._by_key:
            self._keys[block] = key
            self._by_key[key] = block
            if self._changed is not None:
                self._changed[key] = True

    def watch(self) -> bytes:
        """The keys of all cached blocks, joined; from now on changes are noted."""
        if self._changed is None:
            self._changed = {}
        return b"".join(self._by_key)

    def take_changes(self) -> tuple[bytes, bytes]:
        """The keys that have come into the cache and those that have left it since the last call, joined."""
        if not self._changed:
            return b"", b""
        changed, self._changed = self._changed, {}
        stored = [key for key, cached in changed.items() if cached]
        return b"".join(stored), b"".join(key for key, cached in changed.items() if not cached)

    def clear(self) -> None:
        """Forget the content of all blocks, which is lost. No sequence may reference any."""
        assert len(self._free) == self.count
        self._free = OrderedDict.fromkeys(range(self.count))
        self.touched = 0
        self._keys = [None] * self.count
        if self._changed is not None:
            self._changed |= dict.fromkeys(self._by_key, False)
        self._by_key.clear()

    def _evict(self, block: int) -> None:
        key = self._keys[block]
        if key is not None:
            del self._by_key[key]
            self._keys[block] = None
            if self._changed is not None:
                self._changed[key] = False

    def check(self) -> None:
        """Assert the pool's invariants: no block is lost, none is counted twice. For tests."""
        assert all((count == 0) == (block in self._free) for block, count in enumerate(self._references))
        assert all(self._keys[block] == key for key, block in self._by_key.items())
        assert sum(key is not None for key in self._keys) == len(self._by_key)
