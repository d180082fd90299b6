"""The block pool: who holds which page of the KV cache, and which pages can be reused by content.

It knows numbers only; the pages themselves are in `kv_cache`. A block is in exactly one of two states: referenced, or
in the free list. A free block may still be named in the prefix cache; it loses its name when it is handed out for
other content (lazy eviction), blank blocks first, then least recently used. Imports no torch.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b


def block_key(parent: bytes, tokens: Sequence[int], extra: bytes = b"") -> bytes:
    """The name of a full block: its tokens, what they mean besides and, through `parent`, all before them.

    A keyed chain of BLAKE2b digests and not `hash()`, which can be made to collide and would then show one client the
    cache of another.
    """
    return blake2b(array("q", tokens).tobytes() + extra, key=parent, digest_size=16).digest()


def extend_keys(
    keys: list[bytes],
    tokens: Sequence[int],
    blocks: int,
    size: int,
    extra: bytes = b"",
    block_extra: Callable[[int, int], bytes] = lambda _begin, _end: b"",
) -> None:
    """Append to `keys` until it names the first `blocks` blocks of `tokens`, of `size` tokens each.

    `extra` is what blocks must share besides their tokens (a LoRA adapter); it salts the chain.
    `block_extra` says what the tokens of a range mean besides their ids (images).
    """
    parent = keys[-1] if keys else blake2b(extra, digest_size=16).digest()
    for index in range(len(keys), blocks):
        begin, end = index * size, (index + 1) * size
        parent = block_key(parent, tokens[begin:end], block_extra(begin, end))
        keys.append(parent)


class BlockPool:
    """`count` blocks of `size` tokens each, with reference counts and a prefix cache (unless `caching` is off)."""

    def __init__(self, count: int, size: int, *, caching: bool = True) -> None:
        if count < 1 or size < 1:
            raise ValueError(f"a block pool needs at least one block of one token, not {count} of {size}")
        self.count = count
        self.size = size
        self.caching = caching
        self._references = [0] * count
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self._keys: list[bytes | None] = [None] * count
        self._by_key: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody refers to."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks `tokens` tokens fill, the last one perhaps in part."""
        return -(-tokens // self.size)

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the longest run of leading `keys` that are cached. They are not held by this; `take` them."""
        found: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are in the free list, so that taking them makes it shorter."""
        return sum(self._references[block] == 0 for block in blocks)

    def take(self, blocks: Iterable[int]) -> None:
        """Refer to blocks that `find` found."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """`count` blocks for new content, evicting what they cached.

        Raises:
            ValueError: fewer are free.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks wanted, {len(self._free)} free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
            self._unname(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Refer to `blocks` no more. The last of them is evicted first: without it the others are still of use."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if self._keys[block] is None:
                    self._free.move_to_end(block, last=False)

    def publish(self, block: int, key: bytes) -> None:
        """Offer a held, full and computed block for reuse. If `key` is cached already, `block` stays private."""
        if self.caching and self._keys[block] is None and key not in self._by_key:
            self._keys[block] = key
            self._by_key[key] = block

    def _unname(self, block: int) -> None:
        key = self._keys[block]
        if key is not None:
            del self._by_key[key]
            self._keys[block] = None

    def check(self) -> None:
        """Assert that nothing was lost or counted twice; for tests."""
        assert all((count == 0) == (block in self._free) for block, count in enumerate(self._references))
        assert all(self._keys[block] == key for key, block in self._by_key.items())
        assert sum(key is not None for key in self._keys) == len(self._by_key)
