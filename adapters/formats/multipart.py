"""Multipart forms on bytes: one text field read or replaced, all other parts left as they came.

Source: RFC 7578 and RFC 2046, section 5.1.1.
"""

from __future__ import annotations

import re

from schemas.errors import MalformedBody

_BOUNDARY = re.compile(r'boundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'(?i)^content-disposition:[^\r\n]*;\s*name="?([^";\r\n]*)"?', re.MULTILINE)
_MAX_PARTS = 1000


def is_form(media_type: str) -> bool:
    """Whether a media type is that of a multipart form."""
    return media_type.lower().startswith("multipart/form-data")


def form_field(body: bytes, media_type: str, name: str) -> str | None:
    """The text of a field; None if the form does not have it.

    Raises:
        schemas.errors.MalformedBody: the body is no form.
    """
    found = _place(body, media_type, name)
    if found is None:
        return None
    try:
        return body[found[0] : found[1]].decode()
    except UnicodeDecodeError:
        raise MalformedBody(f"The field '{name}' is not valid UTF-8.") from None


def with_field(body: bytes, media_type: str, name: str, value: str) -> bytes:
    """The form with another value of a field, which is added if the form does not have it.

    Raises:
        schemas.errors.MalformedBody: the body is no form.
    """
    found = _place(body, media_type, name)
    if found is not None:
        return body[: found[0]] + value.encode() + body[found[1] :]
    head = b'--%b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n' % (_boundary(media_type), name.encode())
    return head + value.encode() + b"\r\n" + body[body.index(b"--" + _boundary(media_type)) :]


def _place(body: bytes, media_type: str, name: str) -> tuple[int, int] | None:
    """Where the value of a field begins and ends."""
    delimiter = b"--" + _boundary(media_type)
    at = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    if not body.startswith(delimiter, at):
        raise MalformedBody("The request body is not the form that its content type says.")
    for _ in range(_MAX_PARTS):
        start = at + len(delimiter)
        if body.startswith(b"--", start):  # the last delimiter
            return None
        end, value = body.find(b"\r\n" + delimiter, start), body.find(b"\r\n\r\n", start)
        if not start <= value < end:
            raise MalformedBody("The form in the request body is cut off.")
        found = _NAME.search(body, start, value)
        if found is not None and found[1] == name.encode():
            return value + 4, end
        at = end + 2
    raise MalformedBody("The form in the request body has too many parts.")


def _boundary(media_type: str) -> bytes:
    found = _BOUNDARY.search(media_type)
    if found is None:
        raise MalformedBody("The content type names no boundary of the form.")
    return (found[1] or found[2]).encode("latin-1", "replace")
