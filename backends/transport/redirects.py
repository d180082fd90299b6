"""Which redirects are followed: those within an upstream's origin."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

from backends.transport.response import Response
from backends.transport.url import origin_of

_STATUSES = frozenset({301, 302, 303, 307, 308})


def redirected_to(url: str, method: str, response: Response) -> str | None:
    """The URL that an answer redirects a request to, if it may be sent there as it was.

    Only the same origin: elsewhere the key and the prompt might reach somebody else. A POST only by 307 and 308: after
    the others clients send a GET (RFC 9110, 15.4).
    """
    if response.status not in ({307, 308} if method == "POST" else _STATUSES):
        return None
    try:
        to = urljoin(url, response.header("location"))
        return to if origin_of(urlsplit(to)) == origin_of(urlsplit(url)) else None
    except ValueError:  # a location that is no URL
        return None
