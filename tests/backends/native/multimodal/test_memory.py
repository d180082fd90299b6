"""The memory of the largest image: at most 100 MB in the worker, and as much in the decoder's process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import CLIPImageProcessor
from transformers.models.fuyu.image_processing_pil_fuyu import FuyuImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.backends.native.multimodal.families import save_llava_next
from tests.backends.native.multimodal.tiny import save_fuyu, save_llava, save_qwen

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc"),
]

WIDTH, HEIGHT = 4000, 4000
MEGAPIXELS = WIDTH * HEIGHT / 1e6
SIZE: dict[str, Any] = {"size": {"shortest_edge": 336}, "crop_size": 336}
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]

MODELS: dict[str, tuple[Callable[[Path], Path], Any]] = {
    "llava": (save_llava, CLIPImageProcessor(**SIZE)),
    "fuyu": (save_fuyu, FuyuImageProcessorPil()),
    "qwen2_vl": (lambda folder: save_qwen(folder, "qwen2_vl"), Qwen2VLImageProcessorPil()),
    "llava_next": (save_llava_next, LlavaNextImageProcessorPil(**SIZE, image_grid_pinpoints=PINPOINTS)),
}
"""Small models with the image processors of large ones; the last one is not registered."""


def replace_image_processor(folder: Path, processor: Any) -> None:
    """It has a file of its own, or is a part of the whole processor's."""
    processor.save_pretrained(folder)
    whole = folder / "processor_config.json"
    if whole.exists():
        whole.write_text(json.dumps(json.loads(whole.read_text()) | {"image_processor": processor.to_dict()}))


def test_the_largest_image(tmp_path: Path) -> None:
    for name, (save, processor) in MODELS.items():
        replace_image_processor(save(tmp_path / name), processor)
    command = [sys.executable, "-m", "tests.backends.native.multimodal.peak", str(WIDTH), str(HEIGHT)]
    command += [str(tmp_path / name) for name in MODELS]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout.splitlines()
    for name, line in zip(MODELS, lines[-len(MODELS) :], strict=True):
        ours, decoding = (float(megabytes) for megabytes in line.split())
        print(f"{name}: {ours:.0f} MB, decoding {decoding:.0f} MB")
        assert 2 * MEGAPIXELS < ours < 100, f"{name}: three bytes a pixel, and not a copy of it"
        assert 3 * MEGAPIXELS < decoding < 100, f"{name}: Pillow's four bytes a pixel"
