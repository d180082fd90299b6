"""What pictures a backend takes, and from where. The defaults touch neither the network nor the disk."""

from __future__ import annotations

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class ImageOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits and sources.

    Attributes:
        max_images: pictures of one request.
        max_bytes: of a picture's file.
        max_pixels: of a picture, by its header.
        max_request_pixels: of all pictures of a request.
        max_side: pixels of the longer side.
        max_ratio: longer side to shorter side.
        decode_seconds: after which the decoding child is killed.
        decode_memory: bytes that decoding a picture may take.
        hosts: `name` or `name:port` that pictures may be fetched from; none by default.
        networks: addresses in CIDR form that may be connected to although they are not public.
        fetch_seconds: for one picture, redirects included.
        max_redirects: of one picture.
        folder: under which pictures may be read by their path; none by default.
    """

    max_images: Positive = 20
    max_bytes: Positive = 20 * 1024 * 1024
    max_pixels: Positive = 16_000_000
    max_request_pixels: Positive = 64_000_000
    max_side: Positive = 8192
    max_ratio: Positive = 100
    decode_seconds: Seconds = 5.0
    decode_memory: Positive = 100_000_000
    hosts: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    fetch_seconds: Seconds = 10.0
    max_redirects: Annotated[int, msgspec.Meta(ge=0)] = 2
    folder: str | None = None
