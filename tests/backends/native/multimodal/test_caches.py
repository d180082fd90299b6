"""With and without each cache (prefix, encoder, processor), in chunks and in company: the same logits, and no image's
numbers in another's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.runner.embedder import Embedder
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.engine.scheduling.scheduler import Scheduler
from backends.native.engine.scheduling.sequence import Sequence as EngineSequence
from backends.native.engine.scheduling.sequence import Work
from backends.native.multimodal.inputs import ImageItem, MultiModalInputs
from backends.native.multimodal.prompts import ProcessorCache
from backends.native.protocol.messages import Submit
from tests.backends.native.multimodal.families import save_idefics3
from tests.backends.native.multimodal.test_logits import TOLERANCE, far
from tests.backends.native.multimodal.tiny import BLOCK, IMAGE, Checkpoint, save_fuyu, save_llava, save_qwen

pytestmark = pytest.mark.torch

MODELS: dict[str, Callable[[Path], Path]] = {
    "llava": save_llava,
    "fuyu": save_fuyu,
    "qwen2_vl": lambda folder: save_qwen(folder, "qwen2_vl"),
    "idefics3": save_idefics3,
}


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(MODELS[request.param](tmp_path_factory.mktemp(request.param)))


Asked = tuple[MultiModalInputs, Sequence[ImageItem]]


def prompts(checkpoint: Checkpoint) -> list[Asked]:
    """Texts and images; the same words about different images, and the same image at another place and again."""
    kind = checkpoint.model.config.model_type
    mark = 70 if kind == "idefics3" else IMAGE
    one, other = checkpoint.item(1), checkpoint.item(2, 20, 30)
    asked: list[tuple[list[int], list[ImageItem]]] = [([5, 6, 7, 8, 9, 10], []), ([5, 6, 7, 8, 9, 11], [])]
    if kind == "fuyu":
        asked += [([7, 8, 9], [one]), ([7, 8, 9], [other]), ([7, 8, 9, 10, 11], [one])]
    else:
        asked += [([5, mark, 7, 8], [one]), ([5, mark, 7, 8], [other]), ([5, mark, 7, 8, 9], [one])]
        asked += [([5, 6, mark, 7], [one]), ([5, mark, 7, mark, 8], [one, other]), ([5, mark, 7, mark, 8], [one, one])]
    return [(checkpoint.processor.apply(ids, items), items) for ids, items in asked]


class Rig:
    """A scheduler and a runner over one pool, as in the engine."""

    def __init__(self, checkpoint: Checkpoint, *, prefix: bool, capacity: int, step_tokens: int) -> None:
        self.checkpoint = checkpoint
        pool = BlockPool(200, BLOCK, caching=prefix)
        self.embedder = Embedder(checkpoint.wrapper, capacity)
        self.runner = PackedRunner(checkpoint.model, KVCache(200, BLOCK), embedder=self.embedder)
        self.scheduler = Scheduler(pool, step_tokens=step_tokens, max_sequences=4)
        self.arrivals = 0

    def logits(self, asked: Sequence[Asked]) -> list[Tensor]:
        """Run all sequences together; the logits of each one's last position."""
        sequences = []
        for inputs, _ in asked:
            self.arrivals += 1
            submit = Submit(self.arrivals, inputs.prompt_token_ids, 1, features=inputs.features)
            sequences.append(EngineSequence(0, submit, self.arrivals))
            self.scheduler.add(sequences[-1])
        found: dict[EngineSequence, Tensor] = {}
        while self.scheduler.running or self.scheduler.waiting:
            works = self.scheduler.schedule()
            with torch.inference_mode():
                rows = self.runner.run(works).split([work.wanted for work in works])
            for work, row in zip(works, rows, strict=True):
                self._commit(work, row, found)
        return [found[sequence] for sequence in sequences]

    def _commit(self, work: Work, row: Tensor, found: dict[EngineSequence, Tensor]) -> None:
        self.scheduler.commit(work)
        if work.samples:
            found[work.sequence] = row[-1]
            self.scheduler.remove(work.sequence)
            self.runner.forget(work.sequence)


@pytest.mark.parametrize(("prefix", "capacity", "step_tokens"), list(product((False, True), (1, 1000), (5, 1000))))
def test_caches_do_not_change_logits(checkpoint: Checkpoint, prefix: bool, capacity: int, step_tokens: int) -> None:
    """Three rounds in different orders: the first fills the caches, the others hit them."""
    asked = prompts(checkpoint)
    expected = {id(inputs): checkpoint.plain(inputs, items)[-1] for inputs, items in asked}
    rig = Rig(checkpoint, prefix=prefix, capacity=capacity, step_tokens=step_tokens)
    for seed in range(3):
        order = Random(seed).sample(asked, len(asked))
        for logits, (inputs, _) in zip(rig.logits(order), order, strict=True):
            assert far(logits, expected[id(inputs)]) < TOLERANCE
    assert (rig.scheduler.prefix_hits > 0) == prefix


def test_each_image_is_encoded_once_however_small_the_cache(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 5 tokens split every image; four prompts at once, and room for the embeddings of one image."""
    begins = checkpoint.model.config.model_type == "fuyu"
    mark = 70 if checkpoint.model.config.model_type == "idefics3" else IMAGE
    items = [checkpoint.item(seed) for seed in range(4)]
    asked = [(checkpoint.processor.apply([5, 7] if begins else [5, mark, 7], [item]), [item]) for item in items]
    encoded = []
    encode = checkpoint.wrapper.get_multimodal_embeddings
    monkeypatch.setattr(checkpoint.wrapper, "get_multimodal_embeddings", lambda **kw: encoded.append(1) or encode(**kw))
    Rig(checkpoint, prefix=False, capacity=1, step_tokens=5).logits(asked)
    assert len(encoded) == 4


def test_the_prefix_cache_hits_up_to_the_first_difference(checkpoint: Checkpoint) -> None:
    """Same words and image: a hit for all but the last token's block; another image: none past its first token."""
    rig = Rig(checkpoint, prefix=True, capacity=1000, step_tokens=1000)
    asked = prompts(checkpoint)
    with_one, with_other, longer = asked[2:5]
    rig.logits([with_one])
    before = rig.scheduler.prefix_hits
    rig.logits([with_other])
    begins = with_other[0].features[0].offset // BLOCK * BLOCK
    assert rig.scheduler.prefix_hits - before == begins
    before = rig.scheduler.prefix_hits
    rig.logits([longer])
    same = _common(with_one[0].prompt_token_ids, longer[0].prompt_token_ids)
    assert rig.scheduler.prefix_hits - before == same // BLOCK * BLOCK > begins


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def test_a_cached_item_equals_a_new_one(checkpoint: Checkpoint) -> None:
    cache = ProcessorCache()
    for seed, size in product((1, 2, 3), ((30, 20), (20, 30))):
        made = checkpoint.item(seed, *size)
        cache.put(bytes([seed, size[0]]), made)
    for seed, size in product((1, 2, 3), ((30, 20), (20, 30))):
        again, kept = checkpoint.item(seed, *size), cache.get(bytes([seed, size[0]]))
        assert kept is not None
        assert kept.tokens == again.tokens
        assert {name: array.tobytes() for name, array in kept.arrays.items()} == {
            name: array.tobytes() for name, array in again.arrays.items()
        }


def test_the_processor_cache_evicts_the_least_recently_used(checkpoint: Checkpoint) -> None:
    item = checkpoint.item(1)
    cache = ProcessorCache(max_bytes=2 * item.nbytes)
    for name in (b"a", b"b"):
        cache.put(name, item)
    assert cache.get(b"a") is item
    cache.put(b"c", item)
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
