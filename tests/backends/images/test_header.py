"""Format and size of an image, read from its header."""

from __future__ import annotations

import pytest

from backends.images.header import check_header
from backends.images.options import ImageOptions
from schemas.errors import InvalidRequest
from tests.backends.images import files

START, FRAME = b"\xff\xd8", b"\xff\xc0\x00\x0b\x08\x00\x0a\x00\x14\x01"  # SOI; SOF0 of 20 x 10 pixels


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_size_and_format_are_read(format: str) -> None:
    assert check_header(files.file(format, size=(20, 10)), ImageOptions()) == (format, 200)


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"\xff\xe0\x00\x04ab",  # APP0
        b"\xff\xfe\x00\x02",  # an empty comment
        b"\xff\xff\xff\xe1\x00\x03a",  # fill bytes
        b"\xff\xd0\xff\x01",  # RST0, TEM: markers without a length
        b"\xff\xc4\x00\x03a\xff\xcc\x00\x02",  # DHT, DAC: in the range of frames, but no frames
    ],
    ids=["frame first", "APP0", "comment", "fill bytes", "no length", "tables"],
)
def test_segments_before_the_frame_of_a_jpeg_are_skipped(before: bytes) -> None:
    assert check_header(START + before + FRAME, ImageOptions()) == ("JPEG", 200)


@pytest.mark.parametrize(
    "data",
    [START + b"\xff\xe0\xff\xff" + FRAME, START + b"ab" + FRAME, START + FRAME[:8], START + b"\xff\xd9" + FRAME],
    ids=["segment beyond the end", "no marker", "frame cut", "end before the frame"],
)
def test_a_jpeg_without_a_readable_frame_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a JPEG or PNG"):
        check_header(data, ImageOptions())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_pixels": 199}, "at most 199 pixels"),
        ({"max_side": 19}, "a side may have at most 19 pixels"),
        ({"max_ratio": 1}, "differ at most 1 fold"),
        ({"max_bytes": 50}, "larger than 50 bytes"),
    ],
)
def test_an_image_over_a_limit_is_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        check_header(files.file(size=(20, 10)), ImageOptions(**options))
    limits = {"max_pixels": 200, "max_side": 20, "max_ratio": 2}
    assert check_header(files.file(size=(20, 10)), ImageOptions(**limits)) == ("PNG", 200)
