"""Loads the images of a request: resolves references to files, checks limits, decodes files to pixels."""

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

# The bound on the media type keeps the search short in a string of megabytes without a comma.
_DATA_URI = re.compile(r"data:[^,]{0,100};base64,", re.IGNORECASE)


class ImageFile(msgspec.Struct, frozen=True):
    """An image file as the client sent it. `digest` is the SHA-256 of `data`: a cache key that cannot be forged."""

    data: bytes
    format: Format
    digest: bytes


class EmbeddingsFile(msgspec.Struct, frozen=True):
    """Tensors that a client sent in place of an image, as files: its embeddings, and the grid that some models need.

    `digest` is of both, and never that of an image.
    """

    data: bytes
    grid: bytes | None
    digest: bytes


class DecodedImage(msgspec.Struct, frozen=True):
    """The pixels of an image.

    `rgb` has 3 * width * height bytes, row by row. The consumer may reuse the buffer instead of copying it. `digest` is
    that of the file.
    """

    width: int
    height: int
    rgb: bytearray
    digest: bytes


class ImageLoader:
    """Loads images within the limits of `options`."""

    def __init__(self, options: ImageOptions) -> None:
        self._options = options
        self._decoder = Decoder(options)
        self._fetcher = Fetcher(options)

    async def read(self, parts: Sequence[ImagePart]) -> list[ImageFile | EmbeddingsFile]:
        """The files of one request's images, in order.

        The cheap checks come first: the number of images before any is fetched, all headers before any is decoded.
        Embeddings are files within the same limits of number and bytes; nothing in them is read here.

        Raises:
            schemas.errors.InvalidRequest: an image cannot be read, or is beyond a limit.
        """
        most = self._options.max_images
        if len(parts) > most:
            raise InvalidRequest(
                f"At most {most} image{'s' * (most > 1)} may be provided in one request.", param="images"
            )
        files, read, pixels = [], list[ImageFile | EmbeddingsFile](), 0
        # One after another, so that a request has one fetch under way at a time.
        for number, part in enumerate(parts):
            with image_errors(number):
                files.append(await self._bytes_of(part))
        for number, (part, file) in enumerate(zip(parts, files, strict=True)):
            with image_errors(number):
                if part.kind == "embeddings":
                    read.append(await asyncio.to_thread(_embeddings_file, part, file, self._options))
                    continue
                # The pixels are those of the header; nothing is decoded yet.
                format, size = check_header(file, self._options)
            pixels += size
            read.append(ImageFile(file, format, sha256(file).digest()))
        if pixels > self._options.max_request_pixels:
            most = self._options.max_request_pixels
            raise InvalidRequest(f"The images have more than {most} pixels together.", param="images")
        return read

    async def decode(self, file: ImageFile) -> DecodedImage:
        """Decode a file.

        Raises:
            schemas.errors.InvalidRequest: it cannot be decoded.
        """
        # The slot is given back at once: this caller's pixels are outside the decoder's bound on memory.
        async with self.decoded(file) as image:
            return image

    @asynccontextmanager
    async def decoded(self, file: ImageFile) -> AsyncIterator[DecodedImage]:
        """Decode a file for the length of a block.

        The decoder's slot is held until the block ends, so the memory of decoded images is bounded. Use the pixels
        inside the block.
        """
        async with self._decoder.decoded(file.data, file.format) as (width, height, rgb):
            yield DecodedImage(width, height, rgb, file.digest)

    async def aclose(self) -> None:
        """Stop decoding and fetching. Idempotent."""
        await self._fetcher.aclose()
        await self._decoder.aclose()

    async def _bytes_of(self, part: ImagePart) -> bytes:
        if part.kind in ("data", "embeddings"):
            # In threads, because megabytes of base64 and slow disks would block the event loop.
            return await asyncio.to_thread(_decode_data, part.ref, self._options)
        if part.kind == "url":
            return await self._fetcher.fetch(part.ref)
        return await asyncio.to_thread(read_file, part.ref, self._options)


@contextmanager
def image_errors(number: int) -> Iterator[None]:
    """Give errors raised in the block the `param` of a request's image: `images[number]`."""
    try:
        yield
    except InvalidRequest as error:
        error.param = f"images[{number}]"
        raise


def _embeddings_file(part: ImagePart, data: bytes, options: ImageOptions) -> EmbeddingsFile:
    grid = None if part.grid is None else _decode_data(part.grid, options)
    # What is hashed before the file makes the digest differ from an image's, whatever the file is.
    return EmbeddingsFile(data, grid, sha256(b"embeddings" + sha256(grid or b"").digest() + data).digest())


def _decode_data(ref: str, options: ImageOptions) -> bytes:
    """The bytes of a `data:` URI or of bare base64. The length is checked before decoding."""
    found = _DATA_URI.match(ref)
    if found is None and ref[:5].lower() == "data:":
        raise InvalidRequest("The image's data URI is not base64.")
    text = ref[found.end() :] if found else ref  # without "data:" it is bare base64
    if len(text) > options.max_bytes // 3 * 4 + 4:  # four characters for three bytes, padded
        raise too_many_bytes(options)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("The image is not valid base64.") from error
