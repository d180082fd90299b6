"""Uploads: a multipart form whose file is written to the disk as it comes, and never held as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from time import monotonic
from typing import cast

from litestar.types import HTTPRequestEvent, Receive
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from gateway.config import Limits
from schemas.errors import BodyTooLarge, InvalidRequest, MalformedBody, RequestTimeout, UnsupportedMediaType

_MOST_PARTS = 16
_LONGEST_FIELD = 1024
"""Bytes of a field beside the file."""
_LONGEST_NAME = 255
"""Characters that are kept of a file's name."""


class Left(Exception):
    """The client left before it had sent its body."""


class Upload:
    """A form while it is read.

    Attributes:
        fields: without the file.
        name: of the file, as the client gave it, without folders and control characters; None: there is no file.

    Args:
        path: where the file is written.
        most: bytes of the file.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._written = 0
        self._segment: MultipartSegment | None = None
        self.fields: dict[str, str] = {}
        self.name: str | None = None

    async def read(self, receive: Receive, headers: Mapping[str, str], limits: Limits) -> None:
        """Read the form.

        Raises:
            Left: the client left.
            schemas.errors.RequestError: it is no form, too large or too slow.
            OSError: the file cannot be written.
        """
        kind, options = parse_options_header(headers.get("content-type", ""))
        if kind != "multipart/form-data" or not options.get("boundary"):
            raise UnsupportedMediaType("A file is sent as a multipart form.")
        if (coding := headers.get("content-encoding", "identity").lower()) != "identity":
            raise UnsupportedMediaType(f"An upload of a file may not be compressed: its coding is '{coding[:32]}'.")
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._most + _MOST_PARTS * 2 * _LONGEST_FIELD:
            raise self._too_large()
        parser = PushMultipartParser(options["boundary"], max_segment_count=_MOST_PARTS, strict=True)
        with self._path.open("xb") as file:
            self._path.chmod(0o600)
            try:
                async for part in _parts(receive, limits):
                    if data := self._take(parser, part):
                        # In a thread: a disk that is slow must not hold up the event loop.
                        await asyncio.to_thread(file.write, data)
                parser.close()
            except MultipartError as error:
                raise MalformedBody(f"The form in the request body cannot be read: {error}.") from None
            except UnicodeDecodeError:
                raise MalformedBody("A field of the form is not valid UTF-8.") from None
        if self.name is None:
            raise InvalidRequest("Missing required parameter: 'file'.", param="file")

    def _take(self, parser: PushMultipartParser, part: bytes) -> bytes:
        """Parse a part of the body; return what of it belongs to the file."""
        data: list[bytes] = []
        for event in parser.parse(part):
            if isinstance(event, MultipartSegment):
                self._begin(event)
            elif event and self._segment is not None:
                if self._segment.name == "file":
                    self._written += len(event)
                    if self._written > self._most:
                        raise self._too_large()
                    data.append(bytes(event))
                else:
                    self._extend(self._segment.name, bytes(event))
        return b"".join(data)

    def _begin(self, segment: MultipartSegment) -> None:
        self._segment = segment
        if segment.name == "file":
            if self.name is not None:
                raise InvalidRequest("The form has more than one file.", param="file")
            self.name = _sanitized(segment.filename or "file")
        else:
            self.fields[segment.name] = ""

    def _extend(self, name: str, data: bytes) -> None:
        self.fields[name] += data.decode()
        if len(self.fields[name]) > _LONGEST_FIELD:
            raise MalformedBody(f"The field '{name}' of the form is too long.")

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The file is larger than {max(0, self._most)} bytes, which it may have.")


async def _parts(receive: Receive, limits: Limits) -> AsyncIterator[bytes]:
    """The body as it comes: each part in `body_idle` seconds, all together in what their size allows.

    Raises:
        Left: the client left.
        schemas.errors.RequestTimeout: it is too slow.
    """
    began, size = monotonic(), 0
    while True:
        allowed = limits.body_idle + size / limits.body_rate
        try:
            async with asyncio.timeout(min(limits.body_idle, began + allowed - monotonic())):
                message = await receive()
        except TimeoutError:
            raise RequestTimeout("The request body did not arrive in time.") from None
        if message["type"] == "http.disconnect":
            raise Left
        request = cast(HTTPRequestEvent, message)
        if part := request["body"]:
            size += len(part)
            yield part
        if not request["more_body"]:
            return


def _sanitized(name: str) -> str:
    """The last part of a path, without what could be taken for anything but a name. It is shown, and never opened."""
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(each for each in last if each.isprintable())[:_LONGEST_NAME]
    return kept if kept.strip(". ") else "file"
