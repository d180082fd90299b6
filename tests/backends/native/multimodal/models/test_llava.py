"""LLaVA: the number of an image's tokens, and where they go in a prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from backends.native.multimodal.inputs import ImageSize, MultiModalDataItems
from backends.native.multimodal.models.llava import (
    LlavaDummyInputsBuilder,
    LlavaMultiModalProcessor,
    LlavaProcessingInfo,
)
from backends.native.multimodal.updates import apply_updates

IMAGE = 9


def info(strategy: str = "default", tower: str = "clip_vision_model") -> Any:
    made = LlavaProcessingInfo("folder")
    vision = SimpleNamespace(image_size=6, patch_size=2, model_type=tower)
    made._tokenizer = SimpleNamespace(convert_ids_to_tokens={IMAGE: "<image>"}.__getitem__)
    made._hf_config = SimpleNamespace(
        vision_config=vision, vision_feature_select_strategy=strategy, image_token_id=IMAGE
    )
    return made


@pytest.mark.parametrize(("strategy", "tokens"), [("default", 9), ("full", 10)])
def test_an_image_has_a_token_a_patch_and_one_for_the_class_token(strategy: str, tokens: int) -> None:
    assert info(strategy).get_num_image_tokens() == tokens


def test_every_image_is_resized_to_the_square_of_the_tower() -> None:
    assert info().get_image_size_with_most_features() == ImageSize(6, 6)


def test_pixtral_has_the_same_class_but_is_not_covered() -> None:
    assert LlavaProcessingInfo.covers(info().get_hf_config())
    assert not LlavaProcessingInfo.covers(info(tower="pixtral").get_hf_config())


def test_each_placeholder_is_replaced_by_the_tokens_of_an_image() -> None:
    processor: Any = SimpleNamespace(info=info())
    updates = LlavaMultiModalProcessor._get_prompt_updates(processor, MultiModalDataItems(), {}, {})
    ids, placed = apply_updates([1, IMAGE, 2, IMAGE], updates, {"image": 2}, list)
    assert ids == [1, *[IMAGE] * 9, 2, *[IMAGE] * 9]
    assert [place.offset for place in placed] == [1, 11]


def test_dummy_prompts_have_a_placeholder_for_each_image() -> None:
    builder: Any = SimpleNamespace(info=info())
    assert LlavaDummyInputsBuilder.get_dummy_text(builder, {"image": 2}) == "<image><image>"
