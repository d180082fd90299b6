"""Every prompt position's logits are transformers' own; and these tests would notice if they were not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from backends.native.messages import Feature
from backends.native.multimodal.embedder import Embedder
from backends.native.multimodal.inputs import ImageItem, MultiModalInputs
from tests.backends.native.multimodal.tiny import IMAGE, Checkpoint, save_llava

pytestmark = pytest.mark.torch

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(save_llava(tmp_path_factory.mktemp("llava")))


def far(found: Tensor, expected: Tensor) -> float:
    """The greatest difference, as a part of the greatest logit."""
    return float((found - expected).abs().max() / expected.abs().max())


def prompt(checkpoint: Checkpoint, ids: Sequence[int], *items: ImageItem) -> MultiModalInputs:
    return checkpoint.processor.apply(ids, items)


def mixed(checkpoint: Checkpoint) -> list[tuple[MultiModalInputs, tuple[ImageItem, ...]]]:
    """Texts, one picture, two pictures, the same picture twice, a picture at the very start and at the very end."""
    red, blue = checkpoint.item(1), checkpoint.item(2, 9, 90)
    asked: list[tuple[list[int], tuple[ImageItem, ...]]] = [
        ([5, 6, IMAGE, 7, 8, 9], (red,)),
        ([5, 6, 7, 8, 9, 10, 11], ()),
        ([IMAGE, 3, IMAGE, 4], (red, blue)),
        ([12, IMAGE, IMAGE, 13], (blue, blue)),
        ([14, 15, IMAGE], (blue,)),
    ]
    return [(prompt(checkpoint, ids, *items), items) for ids, items in asked]


@pytest.mark.parametrize("chunk", [1, 3, 7, 16, 1000])
def test_logits_in_a_mixed_batch(llava: Checkpoint, chunk: int) -> None:
    asked = mixed(llava)
    found = llava.packed([inputs for inputs, _ in asked], chunk)
    for logits, (inputs, items) in zip(found, asked, strict=True):
        assert far(logits, llava.plain(inputs, items)) < TOLERANCE


@pytest.mark.parametrize("capacity", [1, 9, 1000])
def test_a_cache_of_any_size_changes_nothing(llava: Checkpoint, capacity: int) -> None:
    embedder = Embedder(llava.wrapper, capacity)
    asked = mixed(llava)
    for _ in range(2):
        found = llava.packed([inputs for inputs, _ in asked], 5, embedder)
        for logits, (inputs, items) in zip(found, asked, strict=True):
            assert far(logits, llava.plain(inputs, items)) < TOLERANCE


def test_each_picture_is_encoded_once(llava: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    encode = llava.wrapper.get_multimodal_embeddings
    monkeypatch.setattr(llava.wrapper, "get_multimodal_embeddings", lambda **kw: encoded.append(1) or encode(**kw))
    llava.packed([inputs for inputs, _ in mixed(llava)], 2)
    assert len(encoded) == 2


def _replace(inputs: MultiModalInputs, change: Callable[[Feature], Feature]) -> MultiModalInputs:
    return MultiModalInputs(inputs.prompt_token_ids, tuple(change(feature) for feature in inputs.features))


def _shifted(feature: Feature) -> Feature:
    return msgspec.structs.replace(feature, offset=feature.offset - 1)


def _fewer(feature: Feature) -> Feature:
    return msgspec.structs.replace(feature, is_embed=b"\0" + b"\1" * (feature.length - 1))


class _Rolled(Embedder):
    def encode(self, feature: Feature) -> Tensor:
        return super().encode(feature).roll(1, 0)


def test_the_tests_would_notice(llava: Checkpoint) -> None:
    item, other = llava.item(1), llava.item(2)
    inputs = prompt(llava, [5, 6, IMAGE, 7, 8, 9], item)
    expected = llava.plain(inputs, [item])
    wrong: dict[str, Any] = {
        "not merged": llava.packed([MultiModalInputs(inputs.prompt_token_ids)]),
        "another picture": llava.packed([prompt(llava, [5, 6, IMAGE, 7, 8, 9], other)]),
        "rolled": llava.packed([inputs], embedder=_Rolled(llava.wrapper, 1000)),
        "shifted": llava.packed([_replace(inputs, _shifted)]),
        "one embedding less": llava.packed([_replace(inputs, _fewer)]),
    }
    for name, (logits,) in wrong.items():
        assert far(logits, expected) > 100 * TOLERANCE, name
    assert far(llava.packed([inputs])[0], expected) < TOLERANCE


def test_a_placeholder_that_stands_for_nothing_stays_a_token(llava: Checkpoint) -> None:
    inputs = prompt(llava, [5, IMAGE, 7, IMAGE, 8], llava.item(1))
    assert sum(feature.length for feature in inputs.features) == 9
    assert inputs.prompt_token_ids.count(IMAGE) == 10
    (logits,) = llava.packed([inputs])
    assert torch.isfinite(logits).all()
