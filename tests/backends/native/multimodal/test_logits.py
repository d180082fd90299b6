"""The logits of every prompt position equal transformers', within a tolerance that mistakes exceed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backends.native.engine.runner.embedder import Embedder
from backends.native.multimodal.inputs import ImageItem, MultiModalInputs
from schemas.errors import InvalidRequest
from tests.backends.native.multimodal.tiny import IMAGE, Checkpoint, save_fuyu, save_llava, save_qwen

pytestmark = pytest.mark.torch

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(save_llava(tmp_path_factory.mktemp("llava")))


@pytest.fixture(scope="module", params=["llava", "qwen2_vl", "qwen2_5_vl"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp(request.param)
    return Checkpoint(save_llava(folder) if request.param == "llava" else save_qwen(folder, request.param))


def far(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((found - expected).abs().max() / expected.abs().max())


def prompt(checkpoint: Checkpoint, ids: Sequence[int], *items: ImageItem) -> MultiModalInputs:
    return checkpoint.processor.apply(ids, items)


def mixed(checkpoint: Checkpoint) -> list[tuple[MultiModalInputs, tuple[ImageItem, ...]]]:
    """Texts, one image, two images, the same image twice, an image at the very start and at the very end."""
    red, blue = checkpoint.item(1), checkpoint.item(2, 9, 90)
    asked: list[tuple[list[int], tuple[ImageItem, ...]]] = [
        ([5, 6, IMAGE, 7, 8, 9], (red,)),
        ([5, 6, 7, 8, 9, 10, 11], ()),
        ([IMAGE, 3, IMAGE, 4], (red, blue)),
        ([12, IMAGE, 11, IMAGE, 13], (blue, blue)),
        ([14, 15, IMAGE], (blue,)),
    ]
    return [(prompt(checkpoint, ids, *items), items) for ids, items in asked]


@pytest.mark.parametrize("chunk", [1, 3, 7, 16, 1000])
def test_logits_in_a_mixed_batch(checkpoint: Checkpoint, chunk: int) -> None:
    asked = mixed(checkpoint)
    found = checkpoint.packed([inputs for inputs, _ in asked], chunk)
    for logits, (inputs, items) in zip(found, asked, strict=True):
        assert far(logits, checkpoint.plain(inputs, items)) < TOLERANCE


@pytest.mark.parametrize("capacity", [1, 9, 1000])
def test_the_size_of_the_encoder_cache_does_not_change_logits(checkpoint: Checkpoint, capacity: int) -> None:
    embedder = Embedder(checkpoint.wrapper, capacity)
    asked = mixed(checkpoint)
    for _ in range(2):
        found = checkpoint.packed([inputs for inputs, _ in asked], 5, embedder)
        for logits, (inputs, items) in zip(found, asked, strict=True):
            assert far(logits, checkpoint.plain(inputs, items)) < TOLERANCE


def test_each_image_is_encoded_once(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    encode = checkpoint.wrapper.get_multimodal_embeddings
    monkeypatch.setattr(checkpoint.wrapper, "get_multimodal_embeddings", lambda **kw: encoded.append(1) or encode(**kw))
    checkpoint.packed([inputs for inputs, _ in mixed(checkpoint)], 2)
    assert len(encoded) == 2


def test_a_placeholder_without_an_image_is_an_ordinary_token(llava: Checkpoint) -> None:
    inputs = prompt(llava, [5, IMAGE, 7, IMAGE, 8], llava.item(1))
    assert sum(feature.length for feature in inputs.features) == 9
    assert inputs.prompt_token_ids.count(IMAGE) == 10
    (logits,) = llava.packed([inputs])
    assert torch.isfinite(logits).all()


def test_adjacent_images(tmp_path_factory: pytest.TempPathFactory, llava: Checkpoint) -> None:
    """LLaVA serves them; transformers' positions of Qwen2-VL would take them for one."""
    item = llava.item(1)
    inputs = prompt(llava, [1, IMAGE, IMAGE, 2], item, item)
    assert far(llava.packed([inputs])[0], llava.plain(inputs, [item, item])) < TOLERANCE
    qwen = Checkpoint(save_qwen(tmp_path_factory.mktemp("qwen"), "qwen2_vl"))
    with pytest.raises(InvalidRequest, match="separated by at least one token"):
        prompt(qwen, [1, IMAGE, IMAGE, 2], qwen.item(1), qwen.item(1))


@pytest.mark.parametrize("most", [4096, 256 * 37, 1024, 256])
def test_the_largest_image_of_qwen(tmp_path: Path, most: int) -> None:
    checkpoint = Checkpoint(save_qwen(tmp_path, "qwen2_vl"))
    checkpoint.processor.info.get_image_processor().size["longest_edge"] = most
    worst = _tokens(checkpoint, *checkpoint.processor.info.get_image_size_with_most_features())
    sides = (1, 9, 16, 31, 64, 100, 200, 333, 800)
    sizes = [(one, other) for one in sides for other in sides if max(one, other) <= 100 * min(one, other)]
    assert all(_tokens(checkpoint, *size) <= worst for size in sizes)


def _tokens(checkpoint: Checkpoint, width: int, height: int) -> int:
    item = checkpoint.item(1, width, height)
    return sum(feature.length for feature in checkpoint.processor.apply([IMAGE], [item]).features)


FUYU = [(47, 33), (60, 60), (90, 60), (180, 120), (1000, 30), (30, 1000), (1, 1)]


@pytest.fixture(scope="module")
def fuyu(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(save_fuyu(tmp_path_factory.mktemp("fuyu")))


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_fuyus_logits(fuyu: Checkpoint, chunk: int) -> None:
    asked = [
        (prompt(fuyu, [1, 5, 6, 7], item), [item]) for item in (fuyu.item(n, *size) for n, size in enumerate(FUYU))
    ]
    asked.append((prompt(fuyu, [1, 5, 6]), []))
    found = fuyu.packed([inputs for inputs, _ in asked], chunk)
    for logits, (inputs, items) in zip(found, asked, strict=True):
        assert far(logits, fuyu.plain(inputs, items)) < TOLERANCE


def test_fuyus_tokens(fuyu: Checkpoint) -> None:
    """As `FuyuProcessor`: rows of patches, each with a newline token, `<s>`, the text, the answer's first token."""
    inputs = prompt(fuyu, [1, 5, 6], fuyu.item(1, 47, 33))
    assert list(inputs.prompt_token_ids) == [*([IMAGE] * 5 + [94]) * 4, 1, 5, 6, 95]
    assert inputs.features[0].is_embed == (b"\1" * 5 + b"\0") * 4 + b"\0"
    with pytest.raises(InvalidRequest, match="At most 1 image"):
        prompt(fuyu, [5], fuyu.item(1), fuyu.item(2))
