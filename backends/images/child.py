"""The process that decodes pictures: run as a script, alone, under limits of memory and with no way to write files.

It imports nothing of ours. Frames on stdin are `format, length, file`; on stdout `width, height, RGB`, or zeros for a
picture that cannot be read. It never says why: Pillow's words are not for clients.
"""

from __future__ import annotations

import resource
import struct
import sys
from io import BytesIO
from typing import BinaryIO

from PIL import Image, ImageFile, ImageOps

REQUEST = struct.Struct(">4sI")
REPLY = struct.Struct(">II")


def decode(data: bytes, format: str) -> Image.Image:
    """The picture as it is meant to be seen: upright, on white, RGB; of an animation the first frame."""
    ImageFile.MAXBLOCK = max(ImageFile.MAXBLOCK, len(data))
    with Image.open(BytesIO(data), formats=[format]) as image:
        image.load()
        upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16 bits: `convert` would clip, not scale
        upright = upright.point(lambda value: value / 256).convert("L")
    if "A" not in upright.getbands() and "transparency" not in upright.info:
        return upright.convert("RGB")
    seen = upright.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")


def serve(read: BinaryIO, write: BinaryIO) -> None:
    """Decode until the other side hangs up."""
    while head := read.read(REQUEST.size):
        format, length = REQUEST.unpack(head)
        data = read.read(length)
        try:
            image = decode(data, format.decode().strip())
            reply = REPLY.pack(*image.size) + image.tobytes()
        except Exception:  # a hostile file may raise anything; that it cannot be read is all there is to say
            reply = REPLY.pack(0, 0)
        write.write(reply)
        write.flush()


def main() -> None:
    """`child.py BYTES`: with at most so much address space."""
    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    Image.preinit()
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
