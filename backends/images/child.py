"""The process that decodes images: run as a script, with a limit on memory and no way to write files.

Imports nothing of this project: it starts fast and holds no secrets. Protocol: one byte on stdout when ready; then each
request on stdin is `format, length, file`, and each reply on stdout `width, height, RGB bytes`, or zeros for an image
that cannot be decoded. The reason is not sent: Pillow's texts are not for clients.

Memory: the image is held once, as decoded. It is rotated, put on white and converted to RGB in strips.
"""

from __future__ import annotations

import resource
import signal
import struct
import sys
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO

from PIL import Image
from PIL.Image import Transpose

# Big-endian. Request: format, padded with spaces to 4 bytes; length of the file, 32 bits; CPU seconds, a 32-bit float.
REQUEST = struct.Struct(">4sIf")
REPLY = struct.Struct(">II")  # width and height, 32 bits each; 0, 0 for an image that cannot be decoded
READY = b"."

_ORIENTATION = 0x0112  # the TIFF tag
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
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples of a PNG's pixel, by its colour type (ISO/IEC 15948, 11.2.2)."""
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_INFLATED_AT_ONCE = 1 << 20
_STRIP_PIXELS = 64 * 1024  # 192 KiB of RGB; a strip has a row at least


class UprightImage:
    """An image as it is meant to be seen: upright, on white, RGB; of an animation the first frame."""

    def __init__(self, data: bytes, format: str) -> None:
        # `formats`: Pillow must not guess another format, whose decoder the header check has not let through.
        with Image.open(BytesIO(data), formats=[format]) as image:
            # `open` reads the header only; this decodes the pixels, under the limit on memory.
            image.load()
            if format == "PNG" and _may_be_short(image) and not _is_whole(data):
                raise ValueError("the image data ends before the last row")
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
        # Upside down: the first rows of the result are the last rows of the file.
        if self._turn in (3, 4):
            return 0, height - bottom, width, height - top
        # On its side: rows of the result are columns of the file, from the left ...
        if self._turn in (5, 6):
            return top, 0, bottom, height
        # ... or from the right.
        if self._turn in (7, 8):
            return width - bottom, 0, width - top, height
        return 0, top, width, bottom


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits: `convert` would clip instead of scale
        image = image.point(lambda value: value / 256).convert("L")
    # `transparency` is PNG's tRNS chunk: a transparent colour or palette entry, without an alpha band.
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    white = Image.new("RGB", rgba.size, "white")
    # The mask of an RGBA image is its alpha band.
    white.paste(rgba, mask=rgba)
    return white


def _may_be_short(image: Image.Image) -> bool:
    """Whether the end of a PNG may be missing: Pillow leaves 0 there, and says nothing if the stream ends correctly."""
    # Rows come in order, but for interlaced files.
    width, height = image.size
    last = image.crop((0, height - 1, width, height)).tobytes()
    return bool(image.info.get("interlace")) or not any(last)


def _is_whole(data: bytes) -> bool:
    """Whether the image data of a PNG inflates to as many bytes as its header says."""
    width, height, depth, colour, interlace = struct.unpack(">IIBB2xB", data[16:29])
    bits = depth * _CHANNELS[colour]
    # Each row of each pass has a byte for its filter. ISO/IEC 15948, 8.2: a pass takes each `dx`-th column from `x` on.
    expected: int = sum(
        rows * (1 + (columns * bits + 7) // 8)
        for x, y, dx, dy in (_PASSES if interlace else ((0, 0, 1, 1),))
        if (columns := (width - x + dx - 1) // dx) > 0 and (rows := (height - y + dy - 1) // dy) > 0
    )
    stream, at = zlib.decompressobj(), 8  # behind the signature
    while expected > 0 and at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        rest = data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        while rest and expected > 0 and not stream.eof:
            expected -= len(stream.decompress(rest, _INFLATED_AT_ONCE))
            rest = stream.unconsumed_tail
        at += 12 + length  # length, type, data, checksum
    return expected <= 0


def serve(read: BinaryIO, write: BinaryIO) -> None:
    """Answer requests until stdin is closed."""
    # A blocking read of exactly this size; empty once the gateway has closed the pipe or has ended.
    while head := read.read(REQUEST.size):
        format, length, seconds = REQUEST.unpack(head)
        # CPU time, not time: on a busy machine a good image takes long. At its end SIGPROF kills the process.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            image = UprightImage(read.read(length), format.decode().strip())
        except Exception:  # Pillow raises anything for a hostile file, MemoryError included
            write.write(REPLY.pack(0, 0))
        else:
            # Outside of the try: once the size is written, an error cannot be reported any more. The process ends,
            # which the gateway notices as an incomplete reply.
            write.write(REPLY.pack(*image.size))
            write.writelines(image.strips())
            # Freed before the next image is decoded: the limit on memory is for one.
            del image
        write.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


def _address_space() -> int:
    """The bytes of address space in use now; 0 on systems without /proc."""
    try:
        with open("/proc/self/statm") as file:
            # The first field is the size of the whole address space, in pages (proc(5)).
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return 0


def main() -> None:
    """`child.py BYTES`: serve with at most that much address space in addition to what Python takes."""
    # Loads the plugins before the limits: their memory is part of Python's, and a later import could fail.
    Image.preinit()
    memory = _address_space() + int(sys.argv[1])
    # Hard limits equal to the soft ones, so that code in a hostile file cannot raise them again.
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no byte can be written to any file
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
