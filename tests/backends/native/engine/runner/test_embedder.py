"""The encoder cache: least recently used images go first; `multimodal/test_caches` runs it under an engine."""

from __future__ import annotations

import pytest
import torch

from backends.native.engine.runner.embedder import EncoderCache

pytestmark = pytest.mark.torch


def image(tokens: int) -> torch.Tensor:
    return torch.zeros(tokens, 2)


def test_the_least_recently_used_image_is_evicted() -> None:
    cache = EncoderCache(10)
    cache.put(b"a", image(4))
    cache.put(b"b", image(4))
    assert cache.get(b"a") is not None
    cache.put(b"c", image(4))
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]


def test_as_many_images_are_evicted_as_one_needs() -> None:
    cache = EncoderCache(10)
    for name in (b"a", b"b", b"c"):
        cache.put(name, image(3))
    cache.put(b"d", image(7))
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c", b"d")] == [False, False, True, True]


def test_an_image_larger_than_the_cache_is_kept_alone() -> None:
    cache = EncoderCache(10)
    cache.put(b"a", image(3))
    cache.put(b"large", image(30))
    assert cache.get(b"a") is None
    assert cache.get(b"large") is not None
    cache.put(b"b", image(3))
    assert cache.get(b"large") is None
