"""Qwen2-VL: the number of an image's tokens, and the largest image."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.native.multimodal.inputs import ImageSize, MultiModalDataItems
from backends.native.multimodal.models.qwen2_vl import Qwen2VLMultiModalProcessor, Qwen2VLProcessingInfo
from backends.native.multimodal.updates import apply_updates

IMAGE = 9


def info(longest_edge: int = 0) -> Any:
    return SimpleNamespace(
        get_hf_config=lambda: SimpleNamespace(image_token_id=IMAGE),
        get_image_processor=lambda: SimpleNamespace(patch_size=14, merge_size=2, size={"longest_edge": longest_edge}),
    )


def test_an_image_has_a_token_for_each_square_of_merged_patches() -> None:
    processor: Any = SimpleNamespace(info=info())
    grids = {"image_grid_thw": [np.array([1, rows, columns]) for rows, columns in ((4, 6), (2, 2))]}
    updates = Qwen2VLMultiModalProcessor._get_prompt_updates(processor, MultiModalDataItems(), {}, grids)
    ids, placed = apply_updates([1, IMAGE, 2, IMAGE], updates, {"image": 2}, list)
    assert ids == [1, *[IMAGE] * 6, 2, IMAGE]
    assert [place.offset for place in placed] == [1, 8]


def test_an_image_is_resized_to_multiples_of_a_merged_patch() -> None:
    processor: Any = SimpleNamespace(info=info())
    assert Qwen2VLMultiModalProcessor._get_resize_kwargs(processor) == {"factor": 28}


@pytest.mark.parametrize(
    ("tokens", "columns", "rows"),
    [(50, 100, 1), (101, 100, 1), (120, 60, 2), (144, 72, 2), (1003, 59, 17)],
)
def test_the_largest_image_has_the_most_tokens_within_the_aspect_ratio(tokens: int, columns: int, rows: int) -> None:
    found = Qwen2VLProcessingInfo.get_image_size_with_most_features(info(tokens * 28 * 28))
    assert found == ImageSize(columns * 28, rows * 28)
