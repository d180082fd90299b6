"""URLs and headers of upstreams, as both clients send them."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from adapters.base import Headers, Outbound
from schemas.errors import BackendFailed

# Neither a path nor a header value may hold CR or LF, or it could add a header or a request (CWE-93; RFC 9110, 5.5).
# Both patterns are narrower than the RFC's: visible ASCII, and in headers also space and tab.
_TARGET = re.compile(r"[!-~]+")
_HEADER = re.compile(r"[\t -~]*")
_PORTS = {"http": 80, "https": 443}

# No compression: servers that compress a stream hold events back until a block is full.
FIXED_HEADERS: Headers = (("accept-encoding", "identity"), ("user-agent", "interlingua"))
"""Sent with every request."""
VIA: Headers = (("via", "1.1 interlingua"),)
"""Sent with every request after all other headers: a line for each gateway that it passes (RFC 9110, section 7.6.3)."""


def split_url(url: str) -> SplitResult:
    """The parts of an upstream's base URL.

    Raises:
        ValueError: it is not an http or https URL, has no host, or has a query or credentials.
    """
    parts = urlsplit(url)
    # A query cannot be prefixed to paths. Credentials in URLs end up in logs, and keys have an option of their own.
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ValueError(f"not an http or https URL of a host, without user and query{_instead(parts)}")
    return parts


def _instead(parts: SplitResult) -> str:
    """What to write for a URL that cannot be used; the URL itself may hold a secret."""
    if parts.username:
        return ": name the variable of a key in `api_key_env`"
    if parts.query:
        return ": leave out what follows the question mark"
    return "" if parts.scheme in ("http", "https") else ": begin it with http:// or https://"


def port_of(parts: SplitResult) -> int:
    """The port of an http or https URL, which may be its scheme's."""
    return parts.port or _PORTS[parts.scheme]


def origin_of(parts: SplitResult) -> tuple[str, str, int]:
    """Scheme, host and port of a URL (RFC 6454).

    Raises:
        ValueError: its scheme is another, or its port is no number.
    """
    if parts.scheme not in _PORTS:
        raise ValueError(f"not http or https: {parts.scheme}")
    return parts.scheme, parts.hostname or "", port_of(parts)


def target_of(url: str, request: Outbound) -> str:
    """The path of a request below a base URL.

    Raises:
        schemas.errors.BackendFailed: it cannot be sent.
    """
    base = urlsplit(url).path.rstrip("/")  # paths of requests begin with a slash
    target = (base.removesuffix("/v1") if request.beside_v1 else base) + request.path
    check_target(target)
    return target


def check_target(target: str) -> None:
    """Pass the target of a request line.

    Raises:
        schemas.errors.BackendFailed: it cannot be sent.
    """
    if _TARGET.fullmatch(target) is None:
        raise BackendFailed("The request's path cannot be sent.")


def check_headers(headers: Headers) -> None:
    """Pass headers that can be sent.

    Raises:
        ValueError: one cannot.
    """
    if not all(_HEADER.fullmatch(name) and _HEADER.fullmatch(value) for name, value in headers):
        # The text repeats neither name nor value: the value may be a key.
        raise ValueError("a header holds characters that cannot be sent")
