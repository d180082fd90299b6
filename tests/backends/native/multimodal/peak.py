"""`python -m tests.backends.native.multimodal.peak WIDTH HEIGHT FOLDER...`: the peak of megabytes that an image takes
with each model, in this process and in the one that decodes. Run alone, so that nothing else counts.
"""

from __future__ import annotations

import asyncio
import os
import sys
from hashlib import sha256
from pathlib import Path

from backends.images import ImageFile, ImageOptions
from backends.native.multimodal.prompts import ImagePrompts
from tests.backends.images import files


async def measure(folder: str, size: tuple[int, int]) -> list[float]:
    """The peaks of this process and of the decoder's."""
    prompts = ImagePrompts.load(folder, ImageOptions(decode_seconds=60.0), max_tokens=1)
    await prompts._item(encoded_image((300, 200)))
    before = held_now()
    await prompts._item(encoded_image(size))
    grown = [held(process, "VmHWM") - had for process, had in before.items()]
    await prompts.aclose()
    return grown


def encoded_image(size: tuple[int, int]) -> ImageFile:
    """An image with alpha, so that it is put on a white background, too."""
    data = files.file(size=size, mode="RGBA")
    return ImageFile(data, "PNG", sha256(data).digest())


def held_now() -> dict[str, float]:
    """By process, this one first; peaks are counted from now on."""
    me = str(os.getpid())
    found = {}
    for process in (me, *Path(f"/proc/{me}/task/{me}/children").read_text().split()):
        Path(f"/proc/{process}/clear_refs").write_text("5")
        found[process] = held(process, "VmRSS")
    return found


def held(process: str, what: str) -> float:
    """The peak in megabytes."""
    return int(Path(f"/proc/{process}/status").read_text().split(f"{what}:")[1].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    for folder in sys.argv[3:]:
        print(*asyncio.run(measure(folder, (int(sys.argv[1]), int(sys.argv[2])))))
