"""The encoder's arguments are the output of transformers' image processor, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from backends.images import DecodedImage
from backends.native.multimodal.processing import BaseMultiModalProcessor
from backends.native.multimodal.prompts import load_processor
from tests.backends.native.multimodal.families import SERVED
from tests.backends.native.multimodal.tiny import save_fuyu, save_llava, save_qwen

pytestmark = pytest.mark.torch

SAVE: dict[str, Callable[[Path], Path]] = {
    "llava": save_llava,
    "fuyu": save_fuyu,
    "qwen2_vl": lambda folder: save_qwen(folder, "qwen2_vl"),
    **{save.__name__.removeprefix("save_"): save for save in SERVED},
}


@pytest.fixture(scope="module", params=SAVE.values(), ids=SAVE)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("model"))
    return made


@pytest.fixture(scope="module")
def processor(folder: Path) -> BaseMultiModalProcessor[Any]:
    return load_processor(str(folder))


def of_transformers(folder: Path, pixels: Any) -> dict[str, Any]:
    """The arrays of transformers' own class; of Fuyu's canvas, the patches with image content."""
    made = AutoImageProcessor.from_pretrained(folder, backend="pil")
    fuyu = "Fuyu" in type(made).__name__
    options: dict[str, Any] = {"return_tensors": None if fuyu else "np", "input_data_format": "channels_last"}
    if "Pixtral" in type(made).__name__:
        # As `PixtralProcessor` calls it: sides are multiples of merged patches.
        config = json.loads((folder / "config.json").read_text())
        side = config["vision_config"]["patch_size"] * config.get("spatial_merge_size", 1)
        options["patch_size"] = {"height": side, "width": side}
    found = dict(made([pixels], **options))
    if not fuyu:
        return found
    canvas = np.asarray(found["images"][0][0])
    rows, columns = (-(-int(found[name][0][0]) // 10) * 10 for name in _UNPADDED)
    return {"pixel_values": made.patchify_image(canvas[:, :rows, :columns])}


_UNPADDED = ("image_unpadded_heights", "image_unpadded_widths")


@pytest.mark.parametrize(("width", "height"), [(500, 300), (299, 501), (90, 60), (30, 20), (3, 40)])
def test_the_arrays_are_those_of_transformers(
    folder: Path, processor: BaseMultiModalProcessor[Any], width: int, height: int
) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
    item = processor.process(DecodedImage(width, height, bytearray(pixels), b"an image"))
    expected = of_transformers(folder, pixels)
    assert (item.size.width, item.size.height) == (width, height)
    assert "pixel_values" in item.arrays
    for name in item.arrays.keys() & expected.keys():
        assert item.arrays[name].dtype == expected[name].dtype
        assert np.array_equal(item.arrays[name], expected[name]), name


def test_a_processor_that_does_not_resize(tmp_path: Path) -> None:
    made = AutoImageProcessor.from_pretrained(save_llava(tmp_path), backend="pil")
    made.do_resize = False
    made.save_pretrained(tmp_path)
    pixels = np.random.default_rng(1).integers(0, 256, (24, 24, 3), np.uint8)
    item = load_processor(str(tmp_path)).process(DecodedImage(24, 24, bytearray(pixels), b"an image"))
    assert np.array_equal(item.arrays["pixel_values"], of_transformers(tmp_path, pixels)["pixel_values"])
