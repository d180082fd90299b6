"""Resizing by channel gives transformers' result for the whole image, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL.Image import Resampling
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import SizeDict
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.fuyu.image_processing_pil_fuyu import FuyuImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from backends.native.multimodal.resizing import resizing_by_channel

pytestmark = pytest.mark.torch

SIZES: dict[str, Any] = {
    "smaller": {"height": 37, "width": 50},
    "larger": {"height": 300, "width": 407},
    "wider": {"height": 20, "width": 400},
    "higher": {"height": 400, "width": 20},
    "as it is": {"height": 120, "width": 170},
    "shortest edge": {"shortest_edge": 64},
    "both edges": {"shortest_edge": 64, "longest_edge": 80},
    "at most": {"max_height": 50, "max_width": 90},
}


class Plain(PilBackend):  # type: ignore[misc]
    """An image processor without overrides."""


def noise(height: int, width: int, channels: int = 3) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(1).integers(0, 256, (height, width, channels), np.uint8)


@pytest.mark.parametrize("resample", [*Resampling, None])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_channels_give_the_same_result(size: dict[str, int], resample: Resampling | None) -> None:
    image = np.moveaxis(noise(120, 170), -1, 0)
    wanted = Plain().resize(image, SizeDict(**size), resample)
    found = resizing_by_channel(Plain)().resize(image, SizeDict(**size), resample)
    assert found.shape == wanted.shape
    assert (found == wanted).all()


PROCESSORS: dict[str, tuple[type[PilBackend], dict[str, Any]]] = {
    "clip": (CLIPImageProcessorPil, {}),
    "fuyu": (FuyuImageProcessorPil, {"size": {"height": 90, "width": 120}}),
    "qwen2_vl": (Qwen2VLImageProcessorPil, {"size": {"shortest_edge": 3136, "longest_edge": 50_000}}),
    "llava_next": (LlavaNextImageProcessorPil, {"image_grid_pinpoints": [[224, 448], [448, 224]]}),
    "idefics3": (Idefics3ImageProcessorPil, {}),
}


@pytest.mark.parametrize(("processor", "options"), PROCESSORS.values(), ids=PROCESSORS)
@pytest.mark.parametrize("shape", [(300, 200), (40, 60), (700, 90)])
def test_image_processors_give_the_same_result(
    processor: type[PilBackend], options: dict[str, Any], shape: tuple[int, int]
) -> None:
    made = [
        kind(**options)([noise(*shape)], return_tensors=None, input_data_format="channels_last")
        for kind in (processor, resizing_by_channel(processor))
    ]
    wanted, found = ({name: np.asarray(value) for name, value in each.items()} for each in made)
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_arrays_that_are_no_rgb_image_are_resized_by_transformers() -> None:
    """Pillow premultiplies alpha before both passes, and the scale of floats depends on all channels."""
    for image in (noise(120, 170, 4), noise(120, 170, 1), noise(120, 170) / 255):
        given = np.moveaxis(image, -1, 0), SizeDict(height=50, width=60)
        assert np.array_equal(resizing_by_channel(Plain)().resize(*given), Plain().resize(*given))


def test_the_subclass_keeps_the_name_and_the_overrides() -> None:
    made = resizing_by_channel(CLIPImageProcessorPil)
    assert (made.__name__, made().to_dict()) == ("CLIPImageProcessorPil", CLIPImageProcessorPil().to_dict())
