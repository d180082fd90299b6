"""The decoding process: its pixels equal those of plain Pillow, within the memory limit.

The kernel limits it to `decode_memory`, 100 MB, so an image that is decoded took less.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from io import BytesIO
from itertools import product

import numpy as np
import pytest
import pytest_asyncio
from PIL import Image, ImageOps

from backends.images import ImageLoader, ImageOptions
from backends.images.child import UprightImage
from schemas.errors import InvalidRequest
from tests.backends.images import files

ORIENTATION = 0x0112


def noise(mode: str, size: tuple[int, int]) -> Image.Image:
    rgba = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 4), np.uint8)
    return Image.fromarray(rgba, "RGBA").convert(mode)


def written(image: Image.Image, format: str, orientation: int) -> bytes:
    exif, out = Image.Exif(), BytesIO()
    exif[ORIENTATION] = orientation
    image.save(out, format, exif=exif)
    return out.getvalue()


def by_pillow(data: bytes) -> Image.Image:
    """The image decoded by Pillow, at once instead of in strips."""
    image = ImageOps.exif_transpose(Image.open(BytesIO(data)))
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


@pytest.mark.slow
@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize(
    ("format", "mode"), [*product(["PNG"], ["RGB", "RGBA", "LA", "L", "P"]), *product(["JPEG"], ["RGB", "L", "CMYK"])]
)
def test_strips_equal_the_whole_image(format: str, mode: str, orientation: int) -> None:
    """The image has several strips in any orientation; orientations 0 and 9 are invalid and ignored."""
    data = written(noise(mode, (700, 300)), format, orientation)
    decoded, expected = UprightImage(data, format), by_pillow(data)
    strips = list(decoded.strips())
    assert decoded.size == expected.size
    assert len(strips) > 2
    assert b"".join(strips) == expected.tobytes()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loader() -> AsyncIterator[ImageLoader]:
    loader = ImageLoader(ImageOptions(decode_seconds=60.0))
    yield loader
    await loader.aclose()


SIDE = (4000, 4000)
LARGEST: dict[str, Callable[[], bytes]] = {
    "one bit": lambda: files.png(*SIDE, b"\0" * 501 * 4000),
    "gray": lambda: files.file(mode="L", size=SIDE, color=9),
    "palette": lambda: files.file(mode="P", size=SIDE, color=0),
    "rgb": lambda: files.file(size=SIDE),
    "transparent": lambda: files.file(mode="RGBA", size=SIDE, color=(1, 2, 3, 4)),
    "16 bits": lambda: files.sixteen_bits(SIDE),
    "jpeg": lambda: files.file("JPEG", size=SIDE),
    "cmyk": lambda: files.file("JPEG", mode="CMYK", size=SIDE, color=(0, 255, 255, 0)),
    "rotated": lambda: written(Image.new("RGB", SIDE, files.RED), "JPEG", 6),
    "rotated and transparent": lambda: written(Image.new("RGBA", SIDE, (1, 2, 3, 4)), "PNG", 8),
}


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("make", LARGEST.values(), ids=LARGEST)
async def test_the_largest_images_fit_the_memory_limit(loader: ImageLoader, make: Callable[[], bytes]) -> None:
    (file,) = await loader.read([files.part(make())])
    image = await loader.decode(file)
    assert (image.width, image.height) == SIDE


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_an_image_over_the_memory_limit_is_refused(loader: ImageLoader) -> None:
    """The decoder holds all coefficients of a progressive JPEG before the first pixel."""
    (file,) = await loader.read([files.part(files.file("JPEG", size=SIDE, progressive=True, subsampling=0))])
    with pytest.raises(InvalidRequest, match="more memory"):
        await loader.decode(file)
