"""What hostile and large pictures cost: seconds and memory of each, and what they do to everybody else's answers.

`python -m benchmarks.pictures`. A native backend with its engine in a process; memory is this process' and that of the
children that decode, the most at any time over what was there before. The goals: every picture answered or refused
within a second and 100 MB in each process; texts beside a stream of such pictures as fast as without, but for the turns
that the pictures' own prompts take in the engine.
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
    pictures = {name: part(data) for name, data in made().items()}
    await ask(backend, pictures["small"])
    for name, picture in pictures.items():
        reset()
        before, start = peaks(), time.perf_counter()
        told = await ask(backend, picture)
        seconds = time.perf_counter() - start
        grown = [after - held for after, held in zip(peaks(), before, strict=False)]
        print(f"{name:24} {seconds:5.2f} s   worker {grown[0]:4.0f} MB   decoder {max(grown[1:]):4.0f} MB   {told}")
    alone = await texts(backend)
    async with beside(backend, list(pictures.values())) as count:
        company = await texts(backend)
        print(f"{count[0]} pictures beside {TEXTS} texts")
    print(f"a text alone {alone * 1000:.1f} ms, beside pictures {company * 1000:.1f} ms, ratio {company / alone:.2f}")
    await backend.aclose()


def made() -> dict[str, bytes]:
    """The largest that are taken, and some that are not."""
    side = (4000, 4000)
    pictures = {
        "small": Image.new("RGB", (300, 200), (220, 30, 30)),
        "one bit": Image.new("1", side),
        "gray": Image.new("L", side),
        "transparent": Image.new("RGBA", side, (1, 2, 3, 4)),
        "16 bits": Image.new("I;16", side, 9),
        "a bomb": Image.new("1", (12_000, 12_000)),
    }
    found = {name: saved(image, "PNG") for name, image in pictures.items()}
    exif = Image.Exif()
    exif[0x0112] = 6
    phone = Image.effect_noise((4032, 3024), 40).convert("RGB")
    found["a phone's JPEG"] = saved(phone, "JPEG", exif=exif)
    found["the same, progressive"] = saved(phone, "JPEG", progressive=True)
    found["a JPEG of 19 MB"] = saved(Image.effect_noise(side, 100).convert("RGB"), "JPEG", quality=97)
    found["CMYK JPEG"] = saved(Image.new("CMYK", side), "JPEG")
    found["progressive JPEG"] = saved(Image.new("RGB", side), "JPEG", progressive=True)
    found["truncated JPEG"] = found["a phone's JPEG"][:-100_000]
    return found


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    """A file."""
    out = BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def part(data: bytes) -> ImagePart:
    """As a client sends it."""
    return ImagePart(base64.b64encode(data).decode(), "data")


async def ask(backend: NativeBackend, picture: ImagePart | None, tokens: int = 8) -> str:
    """The beginning of what is said."""
    said: tuple[TextPart | ImagePart, ...] = (TextPart("What is in the picture?"),)
    prompt = ChatPrompt((Message("user", said if picture is None else (picture, *said)),))
    limit = Stopping(max_new_tokens=tokens, ignore_eos=True)
    request = Generate(id="r", model="m", prompts=(prompt,), sampling=Sampling(temperature=0.0), stopping=limit)
    try:
        async for _ in backend.generate(request):
            pass
    except GatewayError as error:
        return error.message
    return "answered"


async def texts(backend: NativeBackend) -> float:
    """The median of a text's seconds."""
    found = []
    for _ in range(TEXTS):
        start = time.perf_counter()
        await ask(backend, None, tokens=20)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


@asynccontextmanager
async def beside(backend: NativeBackend, pictures: Sequence[ImagePart]) -> AsyncIterator[list[int]]:
    """One picture after another, none of them known, as long as the block lasts."""
    count = [0]

    async def send() -> None:
        while True:
            data = base64.b64decode(pictures[count[0] % len(pictures)].ref)
            await ask(backend, part(data + count[0].to_bytes(4, "big")), tokens=1)  # another file, the same picture
            count[0] += 1

    sending = asyncio.create_task(send())
    yield count
    sending.cancel()
    await asyncio.wait([sending])


def processes() -> list[str]:
    """This one, and its children that decode."""
    me = str(os.getpid())
    children = Path(f"/proc/{me}/task/{me}/children").read_text().split()
    return [me, *(child for child in children if "images" in Path(f"/proc/{child}/cmdline").read_text())]


def reset() -> None:
    """Forget the peaks so far."""
    for process in processes():
        Path(f"/proc/{process}/clear_refs").write_text("5")


def peaks() -> list[float]:
    """The most megabytes each held."""
    found = []
    for process in processes():
        status = Path(f"/proc/{process}/status").read_text()
        found.append(int(status.split("VmHWM:")[1].split()[0]) * 1024 / MB)
    return found


if __name__ == "__main__":
    main()
