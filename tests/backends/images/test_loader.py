"""Images sent as bytes: which are decoded, which are refused, and with what texts."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from hashlib import sha256

import pytest
import pytest_asyncio

from backends.images import DecodedImage, ImageLoader, ImageOptions
from schemas.errors import InvalidRequest
from schemas.ir import ImagePart
from tests.backends.images import files
from tests.backends.images.audit import recorded_events

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNHURRIED = ImageOptions(decode_seconds=60.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loader() -> AsyncIterator[ImageLoader]:
    loader = ImageLoader(UNHURRIED)
    yield loader
    await loader.aclose()


async def load(loader: ImageLoader, parts: list[ImagePart]) -> list[DecodedImage]:
    return [await loader.decode(file) for file in await loader.read(parts)]


def near(found: bytes, expected: tuple[int, int, int]) -> bool:
    return all(abs(one - other) <= 6 for one, other in zip(found, expected, strict=True))


DECODED = {
    "png": (files.file(), files.RED),
    "jpeg": (files.file("JPEG"), files.RED),
    "gray": (files.file(mode="L", color=100), (100, 100, 100)),
    "palette": (files.file(mode="P", color=0), (0, 0, 0)),
    "transparent": (files.file(mode="RGBA", color=(255, 0, 0, 0)), (255, 255, 255)),
    "half transparent": (files.file(mode="LA", color=(0, 128)), (127, 127, 127)),
    "cmyk": (files.file("JPEG", mode="CMYK", color=(0, 255, 255, 0)), (255, 0, 0)),
    "16 bits": (files.sixteen_bits(), (128, 128, 128)),
    "animated": (files.animated(), files.RED),
    "progressive": (files.file("JPEG", progressive=True), files.RED),
}


@pytest.mark.parametrize(("data", "color"), DECODED.values(), ids=DECODED)
async def test_pixels_are_decoded(loader: ImageLoader, data: bytes, color: tuple[int, int, int]) -> None:
    (image,) = await load(loader, [files.part(data)])
    assert (image.width, image.height) == (20, 10)
    assert len(image.rgb) == 600
    assert near(image.rgb[:3], color)
    assert near(image.rgb[-3:], color)
    assert image.digest == sha256(data).digest()


async def test_an_image_is_turned_upright(loader: ImageLoader) -> None:
    (image,) = await load(loader, [files.part(files.rotated())])
    assert (image.width, image.height) == (20, 10)
    assert near(image.rgb[:3], (30, 30, 220))
    assert near(image.rgb[19 * 3 : 20 * 3], files.RED)


BOMB = files.png(4000, 4000, b"\0" * 501 * 4000)
REFUSED = {
    "header of a giant png": (files.png(50_000, 50_000), "side"),
    "header of a giant jpeg": (files.jpeg(60_000, 60_000), "side"),
    "more pixels than allowed": (files.png(8000, 8000), "at most 16000000 pixels"),
    "a thread": (files.png(1, 5000), "differ at most 100 fold"),
    "no width": (files.png(0, 10), "empty"),
    "no height in a jpeg": (files.jpeg(10, 0), "empty"),
    "truncated png": (files.file(size=(64, 64))[:-40], "damaged"),
    "truncated jpeg": (files.file("JPEG", size=(640, 640))[:-100], "damaged"),
    "png signature alone": (b"\x89PNG\r\n\x1a\n", "not a JPEG or PNG"),
    "jpeg marker alone": (b"\xff\xd8\xff", "not a JPEG or PNG"),
    "jpeg without a frame": (b"\xff\xd8\xff\xda" + b"\0" * 50, "not a JPEG or PNG"),
    "jpeg of zero lengths": (b"\xff\xd8" + b"\xff\xe0\x00\x00" * 1000, "not a JPEG or PNG"),
    "gif": (files.file("GIF"), "not a JPEG or PNG"),
    "webp": (files.file("WEBP"), "not a JPEG or PNG"),
    "bmp": (files.file("BMP"), "not a JPEG or PNG"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a JPEG or PNG"),
    "text": (b"hello", "not a JPEG or PNG"),
    "nothing": (b"", "not a JPEG or PNG"),
    "a gif called png": (b"\x89PNG\r\n\x1a\n" + files.file("GIF"), "not a JPEG or PNG"),
    "png with rows missing": (files.png(100, 100, b"\0" * 10), "damaged"),
}


@pytest.mark.parametrize(("data", "words"), REFUSED.values(), ids=REFUSED)
async def test_a_broken_or_forbidden_file_is_refused(loader: ImageLoader, data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await load(loader, [files.part(data)])


@pytest.mark.slow
async def test_an_image_at_the_limit_is_decoded(loader: ImageLoader) -> None:
    (image,) = await load(loader, [files.part(BOMB)])
    assert (image.width, image.height) == (4000, 4000)


REFS = {
    "bare base64": base64.b64encode(files.file()).decode(),
    "jpg": f"data:image/jpg;base64,{base64.b64encode(files.file('JPEG')).decode()}",
    "type in capitals": f"DATA:image/png;BASE64,{base64.b64encode(files.file()).decode()}",
    "no type": f"data:;base64,{base64.b64encode(files.file()).decode()}",
}


@pytest.mark.parametrize("ref", REFS.values(), ids=REFS)
async def test_data_references_are_read(loader: ImageLoader, ref: str) -> None:
    (image,) = await load(loader, [ImagePart(ref, "data")])
    assert near(image.rgb[:3], files.RED)


MALFORMED_REFS = {
    "not base64": "data:image/png;base64,!!!!",
    "bad padding": "data:image/png;base64,iVBORw0KG",
    "percent": "data:image/png,%89PNG",
    "umlaut": "data:image/png;base64,ä",
}


@pytest.mark.parametrize("ref", MALFORMED_REFS.values(), ids=MALFORMED_REFS)
async def test_malformed_references_are_refused(loader: ImageLoader, ref: str) -> None:
    with pytest.raises(InvalidRequest, match="base64"):
        await load(loader, [ImagePart(ref, "data")])


LIMITS = {
    "count": ({"max_images": 1}, 2, "At most 1 image may"),
    "bytes": ({"max_bytes": 10}, 1, "larger than 10 bytes"),
    "side": ({"max_side": 19}, 1, "at most 19"),
    "pixels together": ({"max_request_pixels": 399}, 2, "together"),
}


@pytest.mark.parametrize(("limit", "count", "words"), LIMITS.values(), ids=LIMITS)
async def test_images_over_a_limit_are_refused(limit: dict[str, int], count: int, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await load(ImageLoader(ImageOptions(**limit, decode_seconds=60.0)), [files.part(files.file())] * count)


@pytest.mark.parametrize(("ref", "kind"), [("http://127.0.0.1:1/secret.png", "url"), ("/etc/passwd", "path")])
async def test_nothing_is_opened_by_default(loader: ImageLoader, ref: str, kind: str) -> None:
    with recorded_events() as seen, pytest.raises(InvalidRequest) as refused:
        await load(loader, [ImagePart(ref, kind)])
    assert not seen
    assert not any(word in refused.value.message for word in ("127.0.0.1", "secret", "/etc", "passwd"))
