"""Items in the forms of vLLM's types: images, embeddings, frames of videos; other modalities are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from backends.images import DecodedImage, EmbeddingsFile
from backends.native.multimodal.data import read_data
from backends.native.multimodal.inputs import EMBEDDINGS
from backends.native.multimodal.tensors import read_tensor
from schemas.errors import InvalidRequest, UnsupportedFeature
from tests.backends.native.multimodal.tiny import IMAGE, Checkpoint, save_llava

pytestmark = pytest.mark.torch

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
DECODED = DecodedImage(5, 4, bytearray(PIXELS.tobytes()), b"file")


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (DECODED, 1),
        ([DECODED, PIXELS], 2),
        (Image.fromarray(PIXELS), 1),
        ([Image.fromarray(PIXELS)] * 3, 3),
        (PIXELS, 1),
        (np.stack([PIXELS, PIXELS]), 2),
        (torch.from_numpy(PIXELS), 1),
    ],
)
@pytest.mark.parametrize("modality", ["image", "video"])
def test_images_and_frames(modality: str, value: Any, count: int) -> None:
    found = list(read_data({modality: value}))
    assert len(found) == count
    for each in found:
        assert isinstance(each, DecodedImage)
        assert (each.width, each.height, bytes(each.rgb)) == (5, 4, PIXELS.tobytes())


def test_several_videos_after_the_images() -> None:
    found = list(read_data({"video": [[PIXELS, PIXELS + 1], [PIXELS + 2]], "image": [PIXELS + 3]}))
    assert [bytes(each.rgb)[0] for each in found if isinstance(each, DecodedImage)] == [3, 0, 1, 2]
    assert len({each.digest for each in found}) == 4


@pytest.mark.parametrize(
    "data",
    [
        {"image": ROWS},
        {"image": ROWS[None]},
        {"image": [torch.from_numpy(ROWS)]},
        {"image": {EMBEDDINGS: ROWS}},
        {EMBEDDINGS: ROWS},
    ],
)
def test_embeddings(data: Any) -> None:
    (found,) = read_data(data)
    assert isinstance(found, EmbeddingsFile)
    assert (read_tensor(found.data) == ROWS).all()
    assert found.grid is None


def test_embeddings_with_their_grids() -> None:
    grids = np.array([[1, 2, 2], [1, 4, 4]])
    found = list(read_data({"image": {EMBEDDINGS: np.stack([ROWS, ROWS]), "image_grid_thw": grids}}))
    sides = [read_tensor(each.grid).tolist() for each in found if isinstance(each, EmbeddingsFile) and each.grid]
    assert sides == grids.tolist()
    assert found[0].digest != found[1].digest


@pytest.mark.parametrize("modality", ["audio", "point_cloud"])
def test_another_modality_is_refused_by_name(modality: str) -> None:
    with pytest.raises(UnsupportedFeature, match=modality):
        list(read_data({"image": PIXELS, modality: [1]}))


@pytest.mark.parametrize(
    "data",
    [{"image": "a.png"}, {"image": PIXELS[..., :2]}, {"image": PIXELS.astype(int)}, {"video": ROWS}, {"image": {}}],
)
def test_what_is_no_image(data: Any) -> None:
    with pytest.raises(TypeError):
        list(read_data(data))


@pytest.mark.slow
def test_a_processor_takes_them(tmp_path: Path) -> None:
    llava = Checkpoint(save_llava(tmp_path))
    frames = np.random.default_rng(0).integers(0, 256, (2, 30, 40, 3), np.uint8)
    items = llava.processor.process_data({"video": frames})
    alone = [llava.processor.process_data({"image": frame})[0] for frame in frames]
    assert [item.identifier for item in items] == [item.identifier for item in alone]
    for item, one in zip(items, alone, strict=True):
        assert (item.arrays["pixel_values"] == one.arrays["pixel_values"]).all()
    prompt = llava.processor.apply([5, IMAGE, 7, IMAGE], items)
    assert len(prompt.features) == 2
    with pytest.raises(InvalidRequest, match="the model takes floating-point numbers of shape"):
        llava.processor.process_data({"image": ROWS})
