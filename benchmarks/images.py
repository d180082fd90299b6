"""Cost of large and hostile images: seconds and peak memory of each, and their effect on concurrent text requests.

`python -m benchmarks.images`. A native backend with its engine in a process. Memory is the peak of this process and of
the decoding processes, beyond what they held before. Goals: every image answered or refused within a second and 100 MB
in each process; text requests beside a stream of such images as fast as alone, except for the engine's time on the
images' own prompts.
"""

from __future__ import annotations

import asyncio
import base64
import os
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from backends.native.backend import NativeBackend
from schemas.errors import GatewayError
from schemas.ir import ChatPrompt, Generate, ImagePart, Message, Sampling, Stopping, TextPart

TEXTS = 60
MB = 1e6


def main() -> None:
    """Print a table, and the ratio."""
    asyncio.run(measure())


async def measure() -> None:
    """See `main`."""
    backend = NativeBackend("native", {"threads": 1})
    await backend.start()
    images = {name: part(data) for name, data in made().items()}
    await ask(backend, images["small"])
    for name, image in images.items():
        reset()
        before, start = peaks(), time.perf_counter()
        outcome = await ask(backend, image)
        seconds = time.perf_counter() - start
        grown = [after - held for after, held in zip(peaks(), before, strict=False)]
        print(f"{name:24} {seconds:5.2f} s   worker {grown[0]:4.0f} MB   decoder {max(grown[1:]):4.0f} MB   {outcome}")
    alone = await texts(backend)
    async with beside(backend, list(images.values())) as count:
        company = await texts(backend)
        print(f"{count[0]} images beside {TEXTS} texts")
    print(f"a text alone {alone * 1000:.1f} ms, beside images {company * 1000:.1f} ms, ratio {company / alone:.2f}")
    await backend.aclose()


def made() -> dict[str, bytes]:
    """The largest images that are accepted, and some that are rejected."""
    side = (4000, 4000)
    images = {
        "small": Image.new("RGB", (300, 200), (220, 30, 30)),
        "one bit": Image.new("1", side),
        "gray": Image.new("L", side),
        "transparent": Image.new("RGBA", side, (1, 2, 3, 4)),
        "16 bits": Image.new("I;16", side, 9),
        "a bomb": Image.new("1", (12_000, 12_000)),
    }
    files = {name: saved(image, "PNG") for name, image in images.items()}
    exif = Image.Exif()
    exif[0x0112] = 6
    phone = Image.effect_noise((4032, 3024), 40).convert("RGB")
    files["a phone's JPEG"] = saved(phone, "JPEG", exif=exif)
    files["the same, progressive"] = saved(phone, "JPEG", progressive=True)
    files["a JPEG of 19 MB"] = saved(Image.effect_noise(side, 100).convert("RGB"), "JPEG", quality=97)
    files["CMYK JPEG"] = saved(Image.new("CMYK", side), "JPEG")
    files["progressive JPEG"] = saved(Image.new("RGB", side), "JPEG", progressive=True)
    files["truncated JPEG"] = files["a phone's JPEG"][:-100_000]
    return files


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    """The image as a file."""
    out = BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def part(data: bytes) -> ImagePart:
    """The file as a client sends it."""
    return ImagePart(base64.b64encode(data).decode(), "data")


async def ask(backend: NativeBackend, image: ImagePart | None, tokens: int = 8) -> str:
    """Send one request; return "answered" or the error's message."""
    content: tuple[TextPart | ImagePart, ...] = (TextPart("What is in the picture?"),)
    prompt = ChatPrompt((Message("user", content if image is None else (image, *content)),))
    limit = Stopping(max_new_tokens=tokens, ignore_eos=True)
    request = Generate(id="r", model="m", prompts=(prompt,), sampling=Sampling(temperature=0.0), stopping=limit)
    try:
        async for _ in backend.generate(request):
            pass
    except GatewayError as error:
        return error.message
    return "answered"


async def texts(backend: NativeBackend) -> float:
    """The median seconds of a text request."""
    found = []
    for _ in range(TEXTS):
        start = time.perf_counter()
        await ask(backend, None, tokens=20)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


@asynccontextmanager
async def beside(backend: NativeBackend, images: Sequence[ImagePart]) -> AsyncIterator[list[int]]:
    """Send images, one after another and none of them cached, for the length of the block."""
    count = [0]

    async def send() -> None:
        while True:
            data = base64.b64decode(images[count[0] % len(images)].ref)
            await ask(backend, part(data + count[0].to_bytes(4, "big")), tokens=1)  # another file, so no cache hit
            count[0] += 1

    sending = asyncio.create_task(send())
    yield count
    sending.cancel()
    await asyncio.wait([sending])


def processes() -> list[str]:
    """The ids of this process and of the decoding processes."""
    me = str(os.getpid())
    children = Path(f"/proc/{me}/task/{me}/children").read_text().split()
    return [me, *(child for child in children if "images" in Path(f"/proc/{child}/cmdline").read_text())]


def reset() -> None:
    """Reset the peaks."""
    for process in processes():
        Path(f"/proc/{process}/clear_refs").write_text("5")


def peaks() -> list[float]:
    """The peak megabytes of each process."""
    found = []
    for process in processes():
        status = Path(f"/proc/{process}/status").read_text()
        found.append(int(status.split("VmHWM:")[1].split()[0]) * 1024 / MB)
    return found


if __name__ == "__main__":
    main()
