"""Names of the prefix cache's blocks: a worker and an engine compute the same ones. Imports no torch.

A name is a digest of a full block's tokens and, chained through the block before it, of everything before them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b

from backends.native.protocol.messages import Feature, Submit

KEY_BYTES = 16


def block_key(parent: bytes, tokens: Sequence[int], extra: bytes = b"") -> bytes:
    """The key of a full block: a digest of its tokens, of `extra` and, through `parent`, of everything before it.

    BLAKE2b rather than `hash()`: with collisions that can be constructed, one client could read the cache of another.
    """
    # Each token takes eight bytes, so a full block has a fixed length and `extra` after it is unambiguous. The parent
    # goes in as BLAKE2b's key (RFC 7693: up to 64 bytes), which is hashed as a block of its own.
    return blake2b(array("q", tokens).tobytes() + extra, key=parent, digest_size=KEY_BYTES).digest()


def extend_keys(
    keys: list[bytes],
    tokens: Sequence[int],
    blocks: int,
    size: int,
    extra: bytes = b"",
    block_extra: Callable[[int, int], bytes] = lambda _begin, _end: b"",
) -> None:
    """Append to `keys` until it has the keys of the first `blocks` blocks of `tokens`, `size` tokens each.

    Args:
        keys: of the leading blocks, extended in place.
        tokens: of the sequence.
        blocks: how many keys are needed.
        size: tokens of a block.
        extra: salt of the whole chain: what blocks must have in common besides tokens (the LoRA adapter).
        block_extra: for a range of tokens, what they stand for besides their ids (images).
    """
    # The chain starts from the salt: chains of different LoRA adapters have no key in common, from the first block on.
    parent = keys[-1] if keys else blake2b(extra, digest_size=KEY_BYTES).digest()
    for index in range(len(keys), blocks):
        begin, end = index * size, (index + 1) * size
        parent = block_key(parent, tokens[begin:end], block_extra(begin, end))
        keys.append(parent)


def image_extra(features: Sequence[Feature], begin: int, end: int) -> bytes:
    """What tokens `begin` to `end` stand for besides their ids: the images, and the position in each of them.

    Without it two images with equal placeholder tokens would share cache blocks.
    """
    # The offset is negative for an image that begins in an earlier block. It is part of the key, since an image
    # shifted by a token has other embeddings at the same places.
    touching = (f for f in features if f.offset < end and f.offset + f.length > begin)
    return b"".join(f.identifier + (f.offset - begin).to_bytes(8, "big", signed=True) for f in touching)


def prompt_keys(submit: Submit, size: int) -> list[bytes]:
    """The keys of the blocks that a prompt may find in the cache: the last token is always run.

    The LoRA adapter's name is the salt, unless it has been loaded again.
    """
    keys: list[bytes] = []
    features = submit.features
    extend_keys(
        keys,
        submit.prompt,
        (len(submit.prompt) - 1) // size,
        size,
        submit.lora_adapter.encode(),
        lambda begin, end: image_extra(features, begin, end) if features else b"",
    )
    return keys


def split_keys(joined: bytes) -> list[bytes]:
    """Keys that were joined for a message."""
    return [joined[at : at + KEY_BYTES] for at in range(0, len(joined), KEY_BYTES)]
