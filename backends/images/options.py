"""Limits and sources of the images in requests. By default neither network nor disk is touched."""

from __future__ import annotations

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class ImageOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits and sources.

    Attributes:
        max_images: images in one request.
        max_bytes: size of one image file.
        max_pixels: pixels of one image, by its header.
        max_request_pixels: pixels of all images in one request.
        max_side: pixels of the longer side.
        max_ratio: longer side to shorter side.
        decode_seconds: CPU time to decode one image; then the decoding process is killed.
        decode_memory: bytes of memory to decode one image.
        hosts: `name` or `name:port` that images may be fetched from; none by default.
        networks: addresses in CIDR notation that may be connected to although they are not public.
        fetch_seconds: time to fetch one image, redirects included.
        max_redirects: redirects for one image.
        folder: the folder below which images may be read by path; none by default.
    """

    max_images: Positive = 20
    max_bytes: Positive = 20 * 1024 * 1024
    max_pixels: Positive = 16_000_000
    max_request_pixels: Positive = 64_000_000  # four images of `max_pixels`
    max_side: Positive = 8192
    max_ratio: Positive = 100
    decode_seconds: Seconds = 5.0
    decode_memory: Positive = 100_000_000  # 16 million pixels in RGBA take 64 MB
    hosts: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    fetch_seconds: Seconds = 10.0
    max_redirects: Annotated[int, msgspec.Meta(ge=0)] = 2
    folder: str | None = None
