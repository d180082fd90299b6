"""The pool of decoding processes: limits, failures, cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from backends.images import ImageLoader, ImageOptions, decoder
from backends.images.child import READY
from schemas.errors import InvalidRequest, Overloaded
from tests.backends.images import files
from tests.backends.images.test_loader import BOMB, UNHURRIED, load

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_after_a_process_ran_out_of_memory_the_next_image_is_decoded() -> None:
    loader = ImageLoader(ImageOptions(decode_memory=12_000_000, decode_seconds=60.0))
    with pytest.raises(InvalidRequest, match=r"damaged|within the limits"):
        await load(loader, [files.part(BOMB)])
    assert await load(loader, [files.part(files.file())])
    await loader.aclose()


@pytest.mark.slow
async def test_a_process_that_hangs_is_killed_and_replaced() -> None:
    loader = ImageLoader(UNHURRIED)
    assert await load(loader, [files.part(files.file())])
    (used,) = [each for each in loader._decoder._processes if each._child is not None]
    child = used._child
    os.kill(child.pid, signal.SIGSTOP)
    used._options = ImageOptions(decode_seconds=0.1)
    with pytest.raises(Overloaded, match="in time"):  # it has used no CPU time: not the client's fault
        await load(loader, [files.part(files.file())])
    assert child.returncode == -signal.SIGKILL
    used._options = UNHURRIED
    assert await load(loader, [files.part(files.file())])
    await loader.aclose()


@pytest.mark.slow
async def test_an_image_that_takes_too_much_cpu_time_is_the_clients_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_WALL_FACTOR", 3000)
    loader = ImageLoader(ImageOptions(decode_seconds=0.02))
    noise = np.random.default_rng(1).integers(0, 256, (3000, 3000, 3), np.uint8)
    out = BytesIO()
    Image.fromarray(noise).save(out, "JPEG")
    with pytest.raises(InvalidRequest, match="within the limits"):
        await load(loader, [files.part(out.getvalue())])
    await loader.aclose()


def short(interlaced: bool, rows: int, height: int = 40) -> bytes:
    """A white PNG of 1 x `height` whose image data has fewer rows, and is correct otherwise."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, height, 8, 2, 0, 0, interlaced)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff\xff\xff" * rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


@pytest.mark.parametrize("interlaced", [False, True])
async def test_a_png_without_its_last_rows_is_damaged(interlaced: bool) -> None:
    loader = ImageLoader(UNHURRIED)
    assert await load(loader, [files.part(short(interlaced, 40))])
    for rows in (39, 20, 1, 0):
        with pytest.raises(InvalidRequest, match="damaged"):
            await load(loader, [files.part(short(interlaced, rows))])
    await loader.aclose()


async def test_a_black_image_is_whole() -> None:
    loader = ImageLoader(UNHURRIED)
    for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"):
        out = BytesIO()
        Image.new(mode, (33, 17)).save(out, "PNG")
        assert await load(loader, [files.part(out.getvalue())])
    await loader.aclose()


SLOW_TO_START = """
import runpy, sys, time
from pathlib import Path
while not Path({go!r}).exists(): time.sleep(0.01)
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
