"""The body reader: request bodies, bounded in size and in time."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from time import monotonic

from litestar.types import Receive

from gateway.config import Limits
from gateway.http.pending_message import PendingMessage
from schemas.errors import BodyTooLarge, MalformedBody, RequestTimeout, UnsupportedMediaType

_IMAGES = (b'"image', b"![](data:image/")
"""How images begin in a body: the fields `image` and `image_url` of all protocols, and TGI's markdown."""

# RFC 9110, section 8.4.1: "deflate" is the zlib format. tritonclient sends both.
_CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""The content codings of bodies -> zlib's number for their format."""


async def read_body(
    receive: Receive, headers: Mapping[str, str], limits: Limits, *, form: bool = False, whole: bytes | None = None
) -> bytes | None:
    """The whole body; None if the client left before it had sent it.

    Args:
        receive: ASGI's.
        headers: the request's.
        limits: the server's. A form may be as large as a body with images.
        form: whether the body may be a multipart form.
        whole: the body if it has come; None: it is to be received.

    Raises:
        schemas.errors.BodyTooLarge: it is over the limit, or its `content-length` is.
        schemas.errors.UnsupportedMediaType: its content coding is unknown, or it is a multipart form.
        schemas.errors.MalformedBody: it is not of its content coding.
        schemas.errors.RequestTimeout: it did not arrive in time.
    """
    # Whether a body holds images is known only when it is whole, so the larger limit bounds the reading, and the limit
    # for text is applied at the end.
    most = max(limits.max_body, limits.max_image_body)
    is_form = _check_headers(headers, most, form=form)
    body = whole if whole is not None else await _received(receive, limits, most)
    if body is not None and (coding := headers.get("content-encoding", "identity").lower()) != "identity":
        # In a thread: zlib lets other threads run, and a small body may take long.
        body = await asyncio.to_thread(_unpacked, body, coding, most)
    if body is None or len(body) <= limits.max_body:
        return body
    # The search for images runs over large bodies only.
    if len(body) > most or not (is_form or any(mark in body for mark in _IMAGES)):
        raise _too_large(most if len(body) > most else limits.max_body)
    return body


async def _received(receive: Receive, limits: Limits, most: int) -> bytes | None:
    """The body in the pieces in which it comes; None if the client left."""
    began = monotonic()
    parts: list[bytes] = []
    size = 0
    # Each piece has `body_idle` seconds, and all together what their size allows: a client that sends a byte now and
    # then ends as early as one that sends nothing, a large body on a slow line does not.
    while True:
        pending = PendingMessage(receive)
        if (message := pending.message) is None:  # else it had arrived already, and needs no timeout
            allowed = min(limits.body_total, limits.body_idle + size / limits.body_rate)
            try:
                async with asyncio.timeout(min(limits.body_idle, began + allowed - monotonic())):
                    message = await pending
            except TimeoutError:
                raise RequestTimeout("The request body did not arrive in time.") from None
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        # `content-length` may be missing (chunked), so what has arrived is counted as well.
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
        if not message.get("more_body", False):
            return part if len(parts) == 1 else b"".join(parts)  # the usual case: no copy


def _check_headers(headers: Mapping[str, str], most: int, *, form: bool) -> bool:
    """Refuse what the headers show; returns whether the body is a form."""
    # Refused before a byte is read. The HTTP parser rejects a `content-length` that is no number.
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise _too_large(most)
    coding = headers.get("content-encoding", "identity").lower()
    if coding != "identity" and coding not in _CODINGS:
        known = " or ".join(_CODINGS)
        raise UnsupportedMediaType(f"A request body may be compressed with {known}, not with '{coding[:32]}'.")
    is_form = headers.get("content-type", "").lower().startswith("multipart/")
    if is_form and not form:
        raise UnsupportedMediaType("The request body must be JSON.")
    return is_form


def _unpacked(body: bytes, coding: str, most: int) -> bytes:
    """A compressed body without its coding; of one that unpacks to more than `most` bytes, no more is unpacked.

    Raises:
        schemas.errors.BodyTooLarge: it unpacks to more.
        schemas.errors.MalformedBody: it is not of its coding, is cut off, or has something behind its end.
    """
    unpacker = zlib.decompressobj(_CODINGS[coding])
    try:
        unpacked = unpacker.decompress(body, most + 1)
    except zlib.error:
        raise MalformedBody(f"The request body is not {coding} data.") from None
    if len(unpacked) > most:
        raise _too_large(most)
    if not unpacker.eof or unpacker.unused_data:
        raise MalformedBody(f"The request body is not {coding} data: it does not end with it.")
    return unpacked


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {most} bytes.")
