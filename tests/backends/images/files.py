"""Image files, valid and broken, made by hand or by Pillow."""

from __future__ import annotations

import base64
import struct
import zlib
from io import BytesIO
from typing import Any

from PIL import Image

from schemas.ir import ImagePart

RED = (220, 30, 30)


def file(
    format: str = "PNG", mode: str = "RGB", size: tuple[int, int] = (20, 10), color: Any = RED, **save: Any
) -> bytes:
    out = BytesIO()
    Image.new(mode, size, color).save(out, format, **save)
    return out.getvalue()


def part(data: bytes, type: str = "png") -> ImagePart:
    return ImagePart(f"data:image/{type};base64,{base64.b64encode(data).decode()}", "data")


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG of one bit per pixel. `rows` need not match the size in the header."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


def jpeg(width: int, height: int) -> bytes:
    """The header of a JPEG, without data."""
    return b"\xff\xd8\xff\xfe\x00\x04hi\xff\xc0" + struct.pack(">HBHHB", 8, 8, height, width, 0) + b"\xff\xda"


def rotated() -> bytes:
    """A JPEG, red above and blue below, with an EXIF orientation that turns red to the right."""
    image = Image.new("RGB", (10, 20), RED)
    image.paste((30, 30, 220), (0, 10, 10, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    out = BytesIO()
    image.save(out, "JPEG", exif=exif, quality=95)
    return out.getvalue()


def animated() -> bytes:
    out = BytesIO()
    frames = [Image.new("RGB", (20, 10), color) for color in (RED, (0, 0, 255))]
    frames[0].save(out, "PNG", save_all=True, append_images=frames[1:])
    return out.getvalue()


def sixteen_bits(size: tuple[int, int] = (20, 10)) -> bytes:
    out = BytesIO()
    Image.new("I;16", size, 0x8000).save(out, "PNG")
    return out.getvalue()
