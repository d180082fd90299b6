"""The headers of answers that depend on no route: those of a status, and those with the id of the request."""

from __future__ import annotations

from adapters.base import ServerCodec

# RFC 9112, section 9.3: a server reads the whole request body or closes the connection after its response; otherwise
# the rest of the body would be read as the next request. RFC 9110, section 11.6.1: 401 says how to authenticate.
_CLOSE = (("connection", "close"),)
_BY_STATUS = {408: _CLOSE, 413: _CLOSE, 401: (("www-authenticate", 'Bearer realm="interlingua"'),)}


def status_headers(status: int) -> tuple[tuple[str, str], ...]:
    """The headers that every answer with this status has, in all protocols."""
    return _BY_STATUS.get(status, ())


def id_headers(codec: ServerCodec, request_id: str) -> tuple[tuple[str, str], ...]:
    """The headers with the request's id: `x-request-id`, and the one where the protocol's own clients look for it."""
    ours = ("x-request-id", request_id)
    return (ours, (codec.id_header, request_id)) if codec.id_header else (ours,)
