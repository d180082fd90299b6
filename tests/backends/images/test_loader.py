"""Images sent as bytes: which are decoded, which are refused, and with what texts."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from backends.images import DecodedImage, ImageLoader, ImageOptions, decoder
from backends.images.child import READY
from schemas.errors import InvalidRequest, Overloaded
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


async def test_after_a_process_ran_out_of_memory_the_next_image_is_decoded() -> None:
    loader = ImageLoader(ImageOptions(decode_memory=12_000_000, decode_seconds=60.0))
    with pytest.raises(InvalidRequest, match=r"damaged|within the limits"):
        await load(loader, [files.part(BOMB)])
    assert await load(loader, [files.part(files.file())])
    await loader.aclose()


async def test_a_process_that_hangs_is_killed_and_replaced() -> None:
    loader = ImageLoader(UNHURRIED)
    assert await load(loader, [files.part(files.file())])
    (used,) = [each for each in loader._decoder._processes if each._child is not None]
    child = used._child
    os.kill(child.pid, signal.SIGSTOP)
    used._options = ImageOptions(decode_seconds=0.1)
    with pytest.raises(InvalidRequest, match="within the limits"):
        await load(loader, [files.part(files.file())])
    assert child.returncode == -signal.SIGKILL
    used._options = UNHURRIED
    assert await load(loader, [files.part(files.file())])
    await loader.aclose()


@pytest.mark.parametrize(("ref", "kind"), [("http://127.0.0.1:1/secret.png", "url"), ("/etc/passwd", "path")])
async def test_nothing_is_opened_by_default(loader: ImageLoader, ref: str, kind: str) -> None:
    with recorded_events() as seen, pytest.raises(InvalidRequest) as refused:
        await load(loader, [ImagePart(ref, kind)])
    assert not seen
    assert not any(word in refused.value.message for word in ("127.0.0.1", "secret", "/etc", "passwd"))


SLOW_TO_START = """
import runpy, sys, time
from pathlib import Path
while not Path({go!r}).exists(): time.sleep(0.01)
runpy.run_path({script!r}, run_name="__main__")
"""


async def test_the_start_of_a_process_does_not_count_as_decoding_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go, slow = tmp_path / "go", tmp_path / "slow.py"
    slow.write_text(SLOW_TO_START.format(go=str(go), script=str(decoder._SCRIPT)))
    monkeypatch.setattr(decoder, "_SCRIPT", slow)
    loader = ImageLoader(ImageOptions(decode_seconds=0.001))
    loading = asyncio.create_task(load(loader, [files.part(files.file())]))
    done, _ = await asyncio.wait([loading], timeout=0.3)
    assert not done
    for child in loader._decoder._processes:
        child._options = UNHURRIED
    go.touch()
    assert await loading
    await loader.aclose()


async def test_a_slow_image_does_not_block_others() -> None:
    loader = ImageLoader(UNHURRIED)
    await load(loader, [files.part(files.file())])
    (child,) = [each._child for each in loader._decoder._processes if each._child is not None]
    os.kill(child.pid, signal.SIGSTOP)
    slow = asyncio.create_task(load(loader, [files.part(files.file())]))
    await asyncio.sleep(0)
    assert await load(loader, [files.part(files.file("JPEG"))])
    assert not slow.done()
    slow.cancel()
    await asyncio.wait([slow])
    assert child.returncode == -signal.SIGKILL
    assert await load(loader, [files.part(files.file())])
    await loader.aclose()


async def test_a_cancelled_decode_frees_its_slot() -> None:
    loader = ImageLoader(UNHURRIED)
    large = files.part(files.file(mode="1", size=(4000, 4000), color=0))
    await load(loader, [files.part(files.file())])
    for _ in range(3):
        leaving = asyncio.create_task(load(loader, [large]))
        while not any(map(_arriving, loader._decoder._processes)):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        leaving.cancel()
        assert await asyncio.wait([leaving], timeout=30) == ({leaving}, set())
        assert leaving.cancelled()
    assert await load(loader, [files.part(files.file())])
    await loader.aclose()


def _arriving(child: Any) -> bool:
    """Whether part of an image, and not only the ready byte, waits in the pipe of a process."""
    return child._child is not None and len(child._child.stdout._buffer) > len(READY)


async def test_a_decoded_image_holds_its_slot_while_it_is_used() -> None:
    """Two images are held at once; the third is decoded once one of them is released."""
    loader = ImageLoader(UNHURRIED)
    (file,) = await loader.read([files.part(files.file())])
    async with loader.decoded(file), loader.decoded(file):
        third = asyncio.create_task(loader.decode(file))
        done, _ = await asyncio.wait([third], timeout=0.2)
        assert not done
    assert (await third).width == 20
    await loader.aclose()


async def test_images_beyond_the_queue_limit_are_refused() -> None:
    loader = ImageLoader(UNHURRIED)
    many = [load(loader, [files.part(files.file())]) for _ in range(80)]
    found = await asyncio.gather(*many, return_exceptions=True)
    assert sum(isinstance(each, Overloaded) for each in found) <= 80 - 64
    assert all(isinstance(each, list | Overloaded) for each in found)
    await loader.aclose()
