"""The headers of a request."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from gateway.access.keys import KEY_HEADERS
from schemas.errors import InvalidRequest


def decode_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as text, by name.

    All are decoded in one go, since they are many and short: joined by NUL, which no header holds.

    Raises:
        schemas.errors.InvalidRequest: a key is given twice; a proxy in front may have looked at the other one.
    """
    # RFC 9110, section 5.5: NUL is not allowed in a field value; the HTTP parser rejects it. Latin-1 maps every byte to
    # one character, so no header makes this fail.
    joined = b"\0".join(chain.from_iterable(raw))
    parts = joined.decode("latin-1").split("\0")
    if not joined:
        return {}
    headers = dict(zip(parts[::2], parts[1::2], strict=True))
    if 2 * len(headers) != len(parts):  # one occurs twice, which is rare
        names = parts[::2]
        for name in KEY_HEADERS:
            if names.count(name) > 1:
                raise InvalidRequest(f"The header '{name}' is given more than once.")
    return headers
