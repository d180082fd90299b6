"""Reads format and size from an image's header, without decoding anything.

JPEG (ITU-T T.81, B.2) and PNG (W3C PNG, 11.2.1) only. All other formats are refused here, so no other decoder of
Pillow's is ever reached.
"""

from __future__ import annotations

import struct
from typing import Literal

from backends.images.options import ImageOptions
from schemas.errors import InvalidRequest

Format = Literal["JPEG", "PNG"]

_PNG = b"\x89PNG\r\n\x1a\n"  # the signature
_NO_LENGTH = {0x01, *range(0xD0, 0xD9)}  # TEM, RSTn, SOI: markers that stand alone
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # SOFn; C4, C8 and CC are tables and an extension


def check_header(data: bytes, options: ImageOptions) -> tuple[Format, int]:
    """An image's format and its number of pixels.

    Raises:
        schemas.errors.InvalidRequest: the file is neither JPEG nor PNG, or beyond a limit.
    """
    # Data URIs and files were checked before; this is the limit for every source.
    if len(data) > options.max_bytes:
        raise too_many_bytes(options)
    size = _png_size(data) if data.startswith(_PNG) else _jpeg_size(data) if data.startswith(b"\xff\xd8") else None
    if size is None:
        raise InvalidRequest("The image is not a JPEG or PNG file.")
    _check_size(*size, options)
    return ("PNG" if data.startswith(_PNG) else "JPEG"), size[0] * size[1]


def too_many_bytes(options: ImageOptions) -> InvalidRequest:
    """The error of an image file over `max_bytes`."""
    return InvalidRequest(f"The image is larger than {options.max_bytes} bytes.")


def _check_size(width: int, height: int, options: ImageOptions) -> None:
    short, long = sorted((width, height))
    if short < 1:
        raise InvalidRequest("The image is empty.")
    if long > options.max_side:
        raise InvalidRequest(f"The image is {width}x{height}; a side may have at most {options.max_side} pixels.")
    if width * height > options.max_pixels:
        raise InvalidRequest(f"The image is {width}x{height}; it may have at most {options.max_pixels} pixels.")
    # Many image processors resize the shorter side to a fixed length: an extreme ratio would make the longer one huge.
    if long > short * options.max_ratio:
        raise InvalidRequest(f"The image is {width}x{height}; its sides may differ at most {options.max_ratio} fold.")


def _png_size(data: bytes) -> tuple[int, int] | None:
    # Bytes 0-7 signature, 8-11 length of the chunk, 12-15 its type, 16-19 width, 20-23 height. IHDR must be the first.
    if data[12:16] != b"IHDR" or len(data) < 24:
        return None
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2  # behind SOI; from here on, a segment is FF, a marker, a length that counts itself, and data
    while at + 9 <= len(data):  # FF, marker, length (2), precision (1), height (2), width (2)
        if data[at] != 0xFF:  # where a marker must be
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker in _NO_LENGTH:
            at += 2
        elif marker in _FRAMES:
            # A height of 0 stands for one that follows the first scan (DNL, B.2.5). The limits refuse it as empty.
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        elif marker in (0xD9, 0xDA):  # the end, or the scan, before any frame
            return None
        else:
            # `max`: a broken length below 2 must not keep the loop in place.
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return None
