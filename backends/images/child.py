"""The process that decodes images: run as a script, with a limit on memory and no way to write files.

Imports nothing of this project: it starts fast and holds no secrets. Protocol: one byte on stdout when ready; then each
request on stdin is `format, length, file`, and each reply on stdout `width, height, RGB bytes`, or zeros for an image
that cannot be decoded. The reason is not sent: Pillow's texts are not for clients.

Memory: the image is held once, as decoded. It is rotated, put on white and converted to RGB in strips.
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
READY = b"."

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
"""The transposition that puts an image upright, by its EXIF orientation (EXIF 2.3, 4.6.4). From 5 on, rows become
columns."""
_STRIP_PIXELS = 64 * 1024


class UprightImage:
    """An image as it is meant to be seen: upright, on white, RGB; of an animation the first frame."""

    def __init__(self, data: bytes, format: str) -> None:
        with Image.open(BytesIO(data), formats=[format]) as image:
            image.load()
            self._image = image
            self._turn = image.getexif().get(_ORIENTATION, 1)
        width, height = image.size
        self.size = (height, width) if self._turn in (5, 6, 7, 8) else (width, height)

    def strips(self) -> Iterator[bytes]:
        """The RGB bytes, a strip of rows at a time, from the top."""
        width, height = self.size
        rows = max(1, _STRIP_PIXELS // width)
        for top in range(0, height, rows):
            strip = self._image.crop(self._source(top, min(top + rows, height)))
            turn = _UPRIGHT.get(self._turn)
            yield _on_white(strip if turn is None else strip.transpose(turn)).tobytes()

    def _source(self, top: int, bottom: int) -> tuple[int, int, int, int]:
        """The box of these rows in the image as the file stores it."""
        width, height = self._image.size
        if self._turn in (3, 4):
            return 0, height - bottom, width, height - top
        if self._turn in (5, 6):
            return top, 0, bottom, height
        if self._turn in (7, 8):
            return width - bottom, 0, width - top, height
        return 0, top, width, bottom


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits: `convert` would clip instead of scale
        image = image.point(lambda value: value / 256).convert("L")
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    white = Image.new("RGB", rgba.size, "white")
    white.paste(rgba, mask=rgba)
    return white


def serve(read: BinaryIO, write: BinaryIO) -> None:
    """Answer requests until stdin is closed."""
    while head := read.read(REQUEST.size):
        format, length = REQUEST.unpack(head)
        try:
            image = UprightImage(read.read(length), format.decode().strip())
        except Exception:  # Pillow raises anything for a hostile file, MemoryError included
            write.write(REPLY.pack(0, 0))
        else:
            write.write(REPLY.pack(*image.size))
            write.writelines(image.strips())
            del image
        write.flush()


def _address_space() -> int:
    """The bytes of address space in use now; 0 on systems without /proc."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return 0


def main() -> None:
    """`child.py BYTES`: serve with at most that much address space in addition to what Python takes."""
    Image.preinit()
    memory = _address_space() + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no byte can be written to any file
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
