"""The process that decodes pictures: run as a script, alone, under limits of memory and with no way to write files.

It imports nothing of ours. On stdout one byte says that it is there; then frames on stdin are `format, length, file`,
on stdout `width, height, RGB`, or zeros for a picture that cannot be read. It never says why: Pillow's words are not
for clients. The picture is held once, as it was decoded: it is turned, put on white and made RGB in strips.
"""

from __future__ import annotations

import resource
import struct
import sys
from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO

from PIL import Image
from PIL.Image import Transpose

REQUEST = struct.Struct(">4sI")
REPLY = struct.Struct(">II")
HERE = b"."

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
"""By EXIF's number, what puts a picture upright (EXIF 2.3, 4.6.4). From 5 on, rows become columns."""
_STRIP_PIXELS = 64 * 1024


class Upright:
    """A picture as it is meant to be seen: upright, on white, RGB; of an animation the first frame."""

    def __init__(self, data: bytes, format: str) -> None:
        with Image.open(BytesIO(data), formats=[format]) as image:
            image.load()
            self._image = image
            self._turn = image.getexif().get(_ORIENTATION, 1)
        width, height = image.size
        self.size = (height, width) if self._turn in (5, 6, 7, 8) else (width, height)

    def strips(self) -> Iterator[bytes]:
        """Its rows' RGB bytes, some rows at a time."""
        width, height = self.size
        rows = max(1, _STRIP_PIXELS // width)
        for top in range(0, height, rows):
            strip = self._image.crop(self._source(top, min(top + rows, height)))
            turn = _UPRIGHT.get(self._turn)
            yield _on_white(strip if turn is None else strip.transpose(turn)).tobytes()

    def _source(self, top: int, bottom: int) -> tuple[int, int, int, int]:
        """Where in the file's own picture these rows are."""
        width, height = self._image.size
        if self._turn in (3, 4):
            return 0, height - bottom, width, height - top
        if self._turn in (5, 6):
            return top, 0, bottom, height
        if self._turn in (7, 8):
            return width - bottom, 0, width - top, height
        return 0, top, width, bottom


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits: `convert` would clip, not scale
        image = image.point(lambda value: value / 256).convert("L")
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    seen = image.convert("RGBA")
    white = Image.new("RGB", seen.size, "white")
    white.paste(seen, mask=seen)
    return white


def serve(read: BinaryIO, write: BinaryIO) -> None:
    """Decode until the other side hangs up."""
    while head := read.read(REQUEST.size):
        format, length = REQUEST.unpack(head)
        try:
            image = Upright(read.read(length), format.decode().strip())
        except Exception:  # a hostile file may raise anything; that it cannot be read is all there is to say
            write.write(REPLY.pack(0, 0))
        else:
            write.write(REPLY.pack(*image.size))
            write.writelines(image.strips())
            del image
        write.flush()


def _address_space() -> int:
    """What this process has now, where the system tells."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return 0


def main() -> None:
    """`child.py BYTES`: with at most so much address space beside its own."""
    Image.preinit()
    memory = _address_space() + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    sys.stdout.buffer.write(HERE)
    sys.stdout.buffer.flush()
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
