"""From a client's reference to a picture: where its bytes are, whether they may be had, and what they show."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256

import msgspec

from backends.images.decoder import Decoder
from backends.images.fetch import Fetcher
from backends.images.files import read_file
from backends.images.header import Format, check_header, too_many_bytes
from backends.images.options import ImageOptions
from schemas.errors import InvalidRequest
from schemas.ir import ImagePart

_DATA_URI = re.compile(r"data:[^,]{0,100};base64,", re.IGNORECASE)


class ImageFile(msgspec.Struct, frozen=True):
    """A picture as it came. `digest` is the SHA-256 of `data`, which names the picture and cannot be made up."""

    data: bytes
    format: Format
    digest: bytes


class Picture(msgspec.Struct, frozen=True):
    """RGB bytes, row by row, and the digest of the file. The bytes may be taken, since they are many."""

    width: int
    height: int
    rgb: bytearray
    digest: bytes


class ImageLoader:
    """Loads the pictures of requests within the limits of `options`."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options
        self._decoder = Decoder(options)
        self._fetcher = Fetcher(options)

    async def read(self, parts: Sequence[ImagePart]) -> list[ImageFile]:
        """The files of one request's pictures. Their number is checked before anything is touched, then their headers.

        Raises:
            schemas.errors.InvalidRequest: one of them is not to be had, or too much.
        """
        most = self._options.max_images
        if len(parts) > most:
            raise InvalidRequest(
                f"At most {most} image{'s' * (most > 1)} may be provided in one request.", param="images"
            )
        files, headers = [], []
        for number, part in enumerate(parts):
            with about(number):
                files.append(await self._bytes_of(part))
        for number, file in enumerate(files):
            with about(number):
                headers.append(check_header(file, self._options))
        if sum(pixels for _, pixels in headers) > self._options.max_request_pixels:
            most = self._options.max_request_pixels
            raise InvalidRequest(f"The images have more than {most} pixels together.", param="images")
        return [
            ImageFile(file, format, sha256(file).digest()) for file, (format, _) in zip(files, headers, strict=True)
        ]

    async def decode(self, file: ImageFile) -> Picture:
        """What a file shows.

        Raises:
            schemas.errors.InvalidRequest: it cannot be decoded.
        """
        async with self.decoded(file) as picture:
            return picture

    @asynccontextmanager
    async def decoded(self, file: ImageFile) -> AsyncIterator[Picture]:
        """The same, for the block. Others wait meanwhile, so that not too many pictures are held at once."""
        async with self._decoder.decoded(file.data, file.format) as (width, height, rgb):
            yield Picture(width, height, rgb, file.digest)

    async def aclose(self) -> None:
        """Stop decoding and fetching. Idempotent."""
        await self._fetcher.aclose()
        await self._decoder.aclose()

    async def _bytes_of(self, part: ImagePart) -> bytes:
        if part.kind == "data":
            return await asyncio.to_thread(_decode_data, part.ref, self._options)
        if part.kind == "url":
            return await self._fetcher.fetch(part.ref)
        return await asyncio.to_thread(read_file, part.ref, self._options)


@contextmanager
def about(number: int) -> Iterator[None]:
    """What is refused in the block is picture `number` of a request: the error's `param` says `images[number]`."""
    try:
        yield
    except InvalidRequest as error:
        error.param = f"images[{number}]"
        raise


def _decode_data(ref: str, options: ImageOptions) -> bytes:
    """The bytes of a `data:` URI or of bare base64. Its length is checked before it is decoded."""
    found = _DATA_URI.match(ref)
    if found is None and ref[:5].lower() == "data:":
        raise InvalidRequest("The image's data URI is not base64.")
    text = ref[found.end() :] if found else ref
    if len(text) > options.max_bytes // 3 * 4 + 4:
        raise too_many_bytes(options)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("The image is not valid base64.") from error
