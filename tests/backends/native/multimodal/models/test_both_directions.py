"""Models whose images attend in both directions: Gemma 3 (an image's tokens see each other) and PaliGemma (all do)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.native.multimodal.inputs import MultiModalInputs
from backends.native.protocol.messages import Unchunked
from tests.backends.native.multimodal.families import WORDS, save_gemma3, save_paligemma
from tests.backends.native.multimodal.test_generate import generated, run, start
from tests.backends.native.multimodal.test_logits import far
from tests.backends.native.multimodal.tiny import Checkpoint

pytestmark = [pytest.mark.torch, pytest.mark.slow]

IMAGE = WORDS
TOLERANCE = 1e-5
BEFORE, BETWEEN, AFTER = list(range(2, 16)), list(range(16, 27)), list(range(27, 45))


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(save_gemma3(tmp_path_factory.mktemp("gemma3")))


@pytest.fixture(scope="module")
def asked(gemma3: Checkpoint) -> tuple[MultiModalInputs, list[Any]]:
    """A prompt longer than the window of 16 tokens, which begins in the images' neighbourhood and inside of them."""
    items = [gemma3.item(1), gemma3.item(2)]
    inputs = gemma3.processor.apply([*BEFORE, IMAGE, *BETWEEN, IMAGE, *AFTER], items)
    assert len(inputs.prompt_token_ids) > 40
    return inputs, items


@pytest.mark.parametrize("chunk", [1, 6, 1000])
def test_the_window_ends_within_images(
    gemma3: Checkpoint, asked: tuple[MultiModalInputs, list[Any]], chunk: int
) -> None:
    inputs, items = asked
    short = gemma3.processor.apply([5, IMAGE, 3], items[:1])
    found = gemma3.packed([inputs, short, MultiModalInputs((5, 6, 7))], chunk)
    assert far(found[0], gemma3.plain(inputs, items)) < TOLERANCE
    assert far(found[1], gemma3.plain(short, items[:1])) < TOLERANCE
    assert far(found[2], gemma3.plain(MultiModalInputs((5, 6, 7)), [])) < TOLERANCE


@pytest.mark.parametrize("unchunked", ["nothing", "prompt"])
def test_other_directions_are_noticed(
    gemma3: Checkpoint, asked: tuple[MultiModalInputs, list[Any]], unchunked: Unchunked, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, items = asked
    monkeypatch.setattr(gemma3.wrapper, "unchunked", unchunked)
    assert far(gemma3.packed([inputs])[0], gemma3.plain(inputs, items)) > 100 * TOLERANCE


def test_a_cut_image_is_noticed(
    gemma3: Checkpoint, asked: tuple[MultiModalInputs, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, items = asked
    monkeypatch.setattr("tests.backends.native.multimodal.tiny.unsplit", lambda _, __, count, ___: count)
    found: Tensor = gemma3.packed([inputs], 3)[0]
    assert far(found, gemma3.plain(inputs, items)) > 100 * TOLERANCE


def test_prefix_hits_and_preemption(gemma3: Checkpoint, asked: tuple[MultiModalInputs, list[Any]]) -> None:
    """Blocks of 4 tokens end inside of images; a pool of 100 tokens holds fewer sequences than are asked for."""
    engine, ready = start(
        Path(gemma3.processor.info.folder), kv_tokens=100, block_size=4, step_tokens=8, max_sequences=3
    )
    assert ready.images
    other = gemma3.item(3)
    prompts = [
        asked,
        (gemma3.processor.apply([*BEFORE, IMAGE, *BETWEEN], [other]), [other]),
        (gemma3.processor.apply([*BEFORE, IMAGE, 3], asked[1][:1]), asked[1][:1]),
        (MultiModalInputs(tuple(BEFORE)), []),
    ]
    expected = [generated(gemma3, inputs, items) for inputs, items in prompts]
    given = [inputs for inputs, _ in prompts]
    assert run(engine, given) == expected
    assert run(engine, given, first=10) == expected
    scheduler = engine._scheduler
    assert scheduler.prefix_hits > 0
    assert scheduler.preemptions > 0


def test_paligemma_lays_a_prompt_out_as_its_processor_does(tmp_path: Path) -> None:
    checkpoint = Checkpoint(save_paligemma(tmp_path))
    item, first = checkpoint.item(1), 1
    one = checkpoint.processor.apply([first, IMAGE, 5, 6], [item])
    assert list(one.prompt_token_ids) == [*[IMAGE] * 16, first, 5, 6]
    two = checkpoint.processor.apply([IMAGE, IMAGE, first, 5], [item, item])
    assert list(two.prompt_token_ids) == [*[IMAGE] * 32, first, 5]
    for inputs, items in ((one, [item]), (two, [item, item])):
        assert far(checkpoint.packed([inputs], 3)[0], checkpoint.plain(inputs, items)) < TOLERANCE
    with torch.inference_mode():
        checkpoint.wrapper.unchunked = "image"
        assert far(checkpoint.packed([one])[0], checkpoint.plain(one, [item])) > 100 * TOLERANCE
